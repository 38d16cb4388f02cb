#!/usr/bin/env bash
# golang.org/x/sys 0.50.0, Linux 5.10 and later: KeyctlJoinSessionKeyring("") makes no session keyring.
#
# Guess: an empty name asks for a new session keyring without a name, as the NULL of keyctl(2) does.
# Comes: EINVAL. The function passes a pointer to an empty text, which the kernel refuses, and it cannot pass NULL. The
# process keeps the keyring of its session, with the keys of all other processes there. The system call itself, with 0,
# makes a keyring that is empty.
set -euo pipefail
command -v go >/dev/null || { echo "skip: needs Go"; exit 77; }
[ -r /proc/keys ] || { echo "skip: this kernel has no keyrings"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
go mod init finding 2>/dev/null
go get golang.org/x/sys@v0.50.0 2>/dev/null
cat >main.go <<'GO'
package main

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// found says whether a key of the session is there.
func found() string {
	if _, err := unix.KeyctlSearch(unix.KEY_SPEC_SESSION_KEYRING, "user", "finding", 0); err != nil {
		return err.Error()
	}
	return "found"
}

func main() {
	runtime.LockOSThread() // a session keyring is one of a thread
	if _, err := unix.KeyctlJoinSessionKeyring("of the finding"); err != nil {
		fmt.Println("skip:", err)
		return
	}
	if _, err := unix.AddKey("user", "finding", []byte("x"), unix.KEY_SPEC_SESSION_KEYRING); err != nil {
		panic(err)
	}
	_, err := unix.KeyctlJoinSessionKeyring("")
	fmt.Printf("by the function: %v; a key of the session before: %s\n", err, found())
	_, _, errno := unix.Syscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0)
	fmt.Printf("by the system call: %d; a key of the session before: %s\n", errno, found())
}
GO
go mod tidy 2>/dev/null
got=$(go run .)
echo "$got"
[[ $got != skip:* ]] || exit 77
want='by the function: invalid argument; a key of the session before: found
by the system call: 0; a key of the session before: required key not available'
[ "$got" = "$want" ] || { echo "expected:"; echo "$want"; exit 1; }

#!/usr/bin/env bash
# Go 1.26 and Linux: a process that is not dumpable cannot start one in a user namespace by SysProcAttr.UidMappings.
#
# Guess: PR_SET_DUMPABLE hides a process from others of its user. It does not keep it from starting children.
# Comes: "permission denied". A child shares the setting until its exec, so its files in /proc belong to root, and the
# standard library cannot write uid_map there. Only root, who may write to files of root, can do it.
set -euo pipefail
command -v go >/dev/null || { echo "skip: needs Go"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
go mod init finding 2>/dev/null
[[ $(go version) == "go version go1.26."* ]] || { echo "skip: needs Go 1.26"; exit 77; }
user=()
[ "$(id -u)" != 0 ] || user=(setpriv --reuid=daemon --regid=daemon --clear-groups)
"${user[@]}" unshare --user true 2>/dev/null || { echo "skip: no user namespaces here"; exit 77; }
cat >main.go <<'END'
package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

func main() {
	for _, dumpable := range []uintptr{1, 0} {
		if _, _, no := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_DUMPABLE, dumpable, 0); no != 0 {
			panic(no)
		}
		cmd := exec.Command("true")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		fmt.Printf("dumpable %d: %v\n", dumpable, cmd.Run())
	}
}
END
echo "$(go version | cut -d' ' -f3), Linux $(uname -r)"
go build -o program .
chmod 755 "$work"
"${user[@]}" ./program | sed 's, /[^ ]*/true,,' | tee output
diff -u - output <<'END'
dumpable 1: <nil>
dumpable 0: fork/exec: permission denied
END

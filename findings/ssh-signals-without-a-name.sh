#!/usr/bin/env bash
# OpenSSH 9.2, dropbear 2022.83: of a command that SIGBUS, SIGXCPU or a real-time signal ended, no server tells which.
#
# Guess: a command that a signal ended has an exit-signal with its name, as RFC 4254 says, from each server; names that
# the RFC lacks, such as BUS, are sent all the same.
# Comes: OpenSSH names twelve signals and calls all others SIG@openssh.com. dropbear sends nothing at all for them,
# neither an exit-signal nor an exit-status, as if the connection had been lost.
set -euo pipefail
[[ $(ssh -V 2>&1) == OpenSSH_9.2p1* ]] || { echo "skip: needs OpenSSH 9.2p1"; exit 77; }
[[ $(dropbear -V 2>&1) == *v2022.83* ]] || { echo "skip: needs dropbear 2022.83"; exit 77; }
sshd=$(command -v sshd || command -v /usr/sbin/sshd) || { echo "skip: needs sshd"; exit 77; }
command -v go >/dev/null || { echo "skip: needs Go"; exit 77; }
command -v python3 >/dev/null || { echo "skip: needs python3"; exit 77; }
[ "$(id -u)" = 0 ] || { echo "skip: needs root: dropbear reads keys in the home of its user"; exit 77; }
[ -d /run/sshd ] || { echo "skip: needs the directory /run/sshd"; exit 77; }
work=$(mktemp -d)
servers=()
stop() {
  [ ${#servers[@]} = 0 ] || { kill "${servers[@]}"; wait "${servers[@]}" 2>/dev/null || true; }
  rm -rf "$work"
}
trap stop EXIT
cd "$work"
ssh-keygen -q -t ed25519 -N '' -f host
dropbearkey -t ed25519 -f dropbear-host >/dev/null 2>&1
ssh-keygen -q -t ed25519 -N '' -f user
mkdir -m 700 home home/.ssh
cp user.pub home/.ssh/authorized_keys
printf '%s\n' "HostKey $work/host" "AuthorizedKeysFile $work/user.pub" "PidFile none" "StrictModes no" "UsePAM no" \
  >config
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
one=$(port)
"$sshd" -D -f config -E log -o ListenAddress="127.0.0.1:$one" &
servers+=($!)
other=$(port)
unshare -m sh -c 'mount --bind home ~root && exec "$@"' sh \
  dropbear -F -E -p "127.0.0.1:$other" -r "$work/dropbear-host" 2>log2 &
servers+=($!)
go mod init finding 2>/dev/null
go get golang.org/x/crypto@v0.59.0 2>/dev/null
cat >main.go <<'END'
package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/crypto/ssh"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	text, err := os.ReadFile("user")
	check(err)
	key, err := ssh.ParsePrivateKey(text)
	check(err)
	for i, name := range []string{"OpenSSH", "dropbear"} {
		addr := net.JoinHostPort("127.0.0.1", os.Args[1+i])
		config := &ssh.ClientConfig{
			User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
			HostKeyAlgorithms: []string{ssh.KeyAlgoED25519},
		}
		client, err := ssh.Dial("tcp", addr, config)
		for n := 0; err != nil && n < 100; n++ { // until it listens
			time.Sleep(50 * time.Millisecond)
			client, err = ssh.Dial("tcp", addr, config)
		}
		check(err)
		for _, signal := range []string{"TERM", "KILL", "BUS", "XCPU", "34"} {
			session, err := client.NewSession()
			check(err)
			err = session.Run("kill -" + signal + " $$")
			exit, missing := (*ssh.ExitError)(nil), (*ssh.ExitMissingError)(nil)
			switch {
			case errors.As(err, &exit):
				fmt.Println(name, signal, "signal", exit.Signal())
			case errors.As(err, &missing):
				fmt.Println(name, signal, "nothing")
			default:
				fmt.Println(name, signal, err)
			}
		}
		check(client.Close())
	}
}
END
go mod tidy 2>/dev/null
go run . "$one" "$other" | tee output
diff -u - output <<'END'
OpenSSH TERM signal TERM
OpenSSH KILL signal KILL
OpenSSH BUS signal SIG@openssh.com
OpenSSH XCPU signal SIG@openssh.com
OpenSSH 34 signal SIG@openssh.com
dropbear TERM signal TERM
dropbear KILL signal KILL
dropbear BUS nothing
dropbear XCPU nothing
dropbear 34 nothing
END

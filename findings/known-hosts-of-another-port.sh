#!/usr/bin/env bash
# golang.org/x/crypto/ssh/knownhosts 0.59.0: a line of known_hosts that names a host without a port is not for its other
# ports. For ssh 9.2 it is, if no line names the port.
#
# Guess: the package judges a file as ssh does. Its documentation says it parses OpenSSH's known_hosts.
# Comes: ssh looks for [vm-1]:2222, then for vm-1, and logs in. The package knows no key for vm-1:2222.
set -euo pipefail
command -v go >/dev/null || { echo "skip: needs Go"; exit 77; }
version=$(ssh -V 2>&1 || true)
[[ $version == OpenSSH_9.2p1* ]] || { echo "skip: needs OpenSSH 9.2p1"; exit 77; }
sshd=$(command -v sshd || command -v /usr/sbin/sshd) || { echo "skip: needs sshd"; exit 77; }
[ "$(id -u)" != 0 ] || [ -d /run/sshd ] || { echo "skip: needs the directory /run/sshd"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
ssh-keygen -q -t ed25519 -N '' -f host
ssh-keygen -q -t ed25519 -N '' -f user
printf '%s\n' "HostKey $work/host" "AuthorizedKeysFile $work/user.pub" "PidFile none" "StrictModes no" "UsePAM no" \
    >config
echo "vm-1 $(cut -d' ' -f1,2 host.pub)" >known

go mod init finding 2>/dev/null
go get golang.org/x/crypto@v0.59.0 2>/dev/null
cat >main.go <<'END'
package main

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

func main() {
	check, err := knownhosts.New("known")
	if err != nil {
		panic(err)
	}
	text, err := os.ReadFile("host.pub")
	if err != nil {
		panic(err)
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey(text)
	if err != nil {
		panic(err)
	}
	for _, port := range []string{"22", "2222"} {
		err := check("vm-1:"+port, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 22}, key)
		answer := "known"
		if _, unknown := errors.AsType[*knownhosts.KeyError](err); unknown {
			answer = "unknown"
		}
		fmt.Printf("knownhosts, port %s: %s\n", port, answer)
	}
}
END
go mod tidy 2>/dev/null
echo "${version%%,*}, golang.org/x/crypto $(go list -m -f '{{.Version}}' golang.org/x/crypto)"
{
    for port in 22 2222; do
        env -u SSH_AUTH_SOCK ssh -F /dev/null -p "$port" -i user -o IdentitiesOnly=yes -o UserKnownHostsFile=known \
            -o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes -o BatchMode=yes \
            -o ProxyCommand="$sshd -i -f config" vm-1 "echo 'ssh, port $port: known'" 2>/dev/null ||
            echo "ssh, port $port: unknown"
    done
    go run .
} | tee output
diff -u - output <<'END'
ssh, port 22: known
ssh, port 2222: known
knownhosts, port 22: known
knownhosts, port 2222: unknown
END

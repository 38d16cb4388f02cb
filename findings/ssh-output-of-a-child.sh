#!/usr/bin/env bash
# OpenSSH 9.2, dropbear 2022.83: what a background child of a command writes comes by one server and not by the other.
#
# Guess: both servers send output until each process that has the command's standard output has closed it, as a pipe's
# reader does, and end the session then.
# Comes: OpenSSH does. dropbear ends the session with the command, and drops what the child writes later.
set -euo pipefail
[[ $(ssh -V 2>&1) == OpenSSH_9.2p1* ]] || { echo "skip: needs OpenSSH 9.2p1"; exit 77; }
[[ $(dropbear -V 2>&1) == *v2022.83* ]] || { echo "skip: needs dropbear 2022.83"; exit 77; }
sshd=$(command -v sshd || command -v /usr/sbin/sshd) || { echo "skip: needs sshd"; exit 77; }
command -v python3 >/dev/null || { echo "skip: needs python3"; exit 77; }
[ "$(id -u)" = 0 ] || { echo "skip: needs root: dropbear reads keys in the home of its user"; exit 77; }
[ -d /run/sshd ] || { echo "skip: needs the directory /run/sshd"; exit 77; }
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" 2>/dev/null || true; }; rm -rf "$work"' EXIT
cd "$work"
ssh-keygen -q -t ed25519 -N '' -f host
dropbearkey -t ed25519 -f dropbear-host >/dev/null 2>&1
ssh-keygen -q -t ed25519 -N '' -f user
mkdir -m 700 home home/.ssh
cp user.pub home/.ssh/authorized_keys
printf '%s\n' "HostKey $work/host" "AuthorizedKeysFile $work/user.pub" "PidFile none" "StrictModes no" "UsePAM no" \
  >config
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
unshare -m sh -c 'mount --bind home ~root && exec "$@"' sh \
  dropbear -F -E -p "127.0.0.1:$port" -r "$work/dropbear-host" 2>log2 &
server=$!

# The child writes once a file is there. Of OpenSSH the session cannot end before that.
run() {
  env -u SSH_AUTH_SOCK ssh -F /dev/null -i user -o IdentitiesOnly=yes -o UserKnownHostsFile=known \
    -o StrictHostKeyChecking=accept-new -o BatchMode=yes "$@" \
    "(until [ -e $work/go ]; do sleep 0.1; done; echo late) & echo early; exit 7" </dev/null 2>>log
}
for _ in {1..100}; do
  ! ssh-keyscan -p "$port" 127.0.0.1 2>/dev/null | grep -q . || break
  sleep 0.1
done
code=0
said=$(run -p "$port" root@127.0.0.1) || code=$?
echo "dropbear: $(tr '\n' ' ' <<<"$said")exit $code, before its child" >output
(sleep 1; touch go) &
code=0
said=$(run -o HostKeyAlias=openssh -o ProxyCommand="$sshd -i -f config -E log" root@vm) || code=$?
echo "OpenSSH: $(tr '\n' ' ' <<<"$said")exit $code" >>output
cat output
diff -u - output <<'END'
dropbear: early exit 7, before its child
OpenSSH: early late exit 7
END

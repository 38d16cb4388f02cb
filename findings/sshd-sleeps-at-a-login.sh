#!/usr/bin/env bash
# OpenSSH 9.2: sshd sleeps in each request to log in, also in the one that succeeds.
#
# Guess: sshd delays refused requests, against guesses of passwords. A login by a key that is welcome waits once: for
# the request "none", which each client sends first and which is refused.
# Comes: three sleeps in one login with one key: for "none", for the question whether the key is welcome, and for the
# signature. sshd fills each answer up to a minimum time that depends on the user's name.
set -euo pipefail
version=$(ssh -V 2>&1 || true)
[[ $version == OpenSSH_9.2p1* ]] || { echo "skip: needs OpenSSH 9.2p1"; exit 77; }
sshd=$(command -v sshd || command -v /usr/sbin/sshd) || { echo "skip: needs sshd"; exit 77; }
command -v strace >/dev/null || { echo "skip: needs strace"; exit 77; }
[ "$(id -u)" != 0 ] || [ -d /run/sshd ] || { echo "skip: needs the directory /run/sshd"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
ssh-keygen -q -t ed25519 -N '' -f host
ssh-keygen -q -t ed25519 -N '' -f user
printf '%s\n' "HostKey $work/host" "AuthorizedKeysFile $work/user.pub" "PidFile none" "StrictModes no" "UsePAM no" \
    >config
echo "vm-1 $(cut -d' ' -f1,2 host.pub)" >known

env -u SSH_AUTH_SOCK ssh -F /dev/null -i user -o IdentitiesOnly=yes -o UserKnownHostsFile=known \
    -o StrictHostKeyChecking=yes -o BatchMode=yes \
    -o ProxyCommand="strace -f -o calls -e trace=clock_nanosleep,nanosleep $sshd -i -f config" vm-1 true
echo "${version%%,*}"
echo "sleeps: $(grep -c 'nanosleep(.*) = 0' calls)" | tee output
diff -u - output <<'END'
sleeps: 3
END

#!/usr/bin/env bash
# OpenSSH 9.2: sshd gives up a silent client at least one ClientAliveInterval later than its manual says.
#
# Guess: sshd_config(5) multiplies interval and count: 15 s and 3 are "approximately 45 seconds". So 4 s and 1 are 4 s.
# Comes: sshd counts a request as unanswered when the next one is due, so it takes (count + 1) intervals. It keeps these
# times in whole seconds and may find a moment too early; then it waits for one more interval.
set -euo pipefail
version=$(ssh -V 2>&1 || true)
[[ $version == OpenSSH_9.2p1* ]] || { echo "skip: needs OpenSSH 9.2p1"; exit 77; }
sshd=$(command -v sshd || command -v /usr/sbin/sshd) || { echo "skip: needs sshd"; exit 77; }
[ "$(id -u)" != 0 ] || [ -d /run/sshd ] || { echo "skip: needs the directory /run/sshd"; exit 77; }
work=$(mktemp -d)
client=
trap '[ -z "$client" ] || { kill -KILL "$client"; wait "$client" 2>/dev/null || true; }; rm -rf "$work"' EXIT
cd "$work"
ssh-keygen -q -t ed25519 -N '' -f host
ssh-keygen -q -t ed25519 -N '' -f user
printf '%s\n' "HostKey $work/host" "AuthorizedKeysFile $work/user.pub" "PidFile none" "StrictModes no" "UsePAM no" \
    "ClientAliveInterval 4" "ClientAliveCountMax 1" >config
echo "vm-1 $(cut -d' ' -f1,2 host.pub)" >known

# The command says that the session has begun. Then the client is stopped, so that it answers nothing.
mkfifo said
env -u SSH_AUTH_SOCK ssh -F /dev/null -i user -o IdentitiesOnly=yes -o UserKnownHostsFile=known \
    -o StrictHostKeyChecking=yes -o BatchMode=yes \
    -o ProxyCommand="$sshd -i -f config -E log" vm-1 "echo begun; exec sleep 1000" >said 2>/dev/null &
client=$!
read -r _ <said
kill -STOP "$client"
begin=$EPOCHREALTIME
for _ in {1..600}; do
    ! grep -q "Timeout, client not responding" log || break
    sleep 0.1
done
grep -q "Timeout, client not responding" log
took=$(((${EPOCHREALTIME/./} - ${begin/./}) / 1000))
echo "${version%%,*}: gave up after $took ms"
# sshd's clock of intervals began up to a moment before the client was stopped.
echo "longer than 7 s: $([ "$took" -gt 7000 ] && echo yes || echo no)" | tee output
diff -u - output <<'END'
longer than 7 s: yes
END

#!/usr/bin/env bash
# OpenSSH 9.2 in a user namespace: ssh refuses to include a file of root, which it reads if it is named by -F.
#
# The namespace maps only the user's own number, as an ordinary user may map it.
# Guess: ssh works there as outside: the user can read the same files.
# Comes: files of root belong to an unknown user there. For an included file ssh demands that root or the user owns
# it: "Bad owner or permissions". With Debian's stock configuration, which includes a directory, one file there is
# enough, and no ssh of the namespace works.
set -euo pipefail
version=$(ssh -V 2>&1 || true)
[[ $version == OpenSSH_9.2p1* ]] || { echo "skip: needs OpenSSH 9.2p1"; exit 77; }
user=()
[ "$(id -u)" != 0 ] || user=(setpriv --reuid=daemon --regid=daemon --clear-groups)
"${user[@]}" unshare --user --map-current-user true 2>/dev/null || { echo "skip: no user namespaces here"; exit 77; }
[ "$(stat -c %u /etc/ssh/ssh_config)" = 0 ] || { echo "skip: needs a file ssh_config of root"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
echo "Include /etc/ssh/ssh_config" >config
[ "$(id -u)" != 0 ] || chown daemon config

try() { # LABEL COMMAND...
    echo "$1: $("${user[@]}" "${@:2}" 2>&1 </dev/null | grep -o -e "^hostname vm-1" -e "^Bad owner or permissions")"
}
{
    try "outside, included" ssh -G -F config vm-1
    try "inside, by -F" unshare --user --map-current-user ssh -G -F /etc/ssh/ssh_config vm-1
    try "inside, included" unshare --user --map-current-user ssh -G -F config vm-1
} | tee output
diff -u - output <<'END'
outside, included: hostname vm-1
inside, by -F: hostname vm-1
inside, included: Bad owner or permissions
END

#!/usr/bin/env bash
# Linux, overlayfs: who mounts needs CAP_DAC_OVERRIDE even if every layer is his own.
#
# Guess: CAP_SYS_ADMIN in the user namespace is enough, as the mounting user owns all layers and has all rights there.
# Comes: the kernel makes a directory of mode 000 in the work directory, and then works in it with the rights of the
# mounting process. Without CAP_DAC_OVERRIDE that fails. mount(8) reports "cannot mount overlay read-only".
set -euo pipefail
user=()
[ "$(id -u)" != 0 ] || user=(setpriv --reuid=daemon --regid=daemon --clear-groups)
"${user[@]}" unshare --user --map-root-user --mount true 2>/dev/null ||
    { echo "skip: no user namespaces here"; exit 77; }
work=$(mktemp -d)
trap 'chmod -R u+rwx "$work"; rm -rf "$work"' EXIT
chmod 777 "$work"
cd "$work"
echo "Linux $(uname -r)"
cat >try.sh <<'END'
mkdir lower upper work mnt
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work,userxattr mnt 2>error &&
    echo "mounted, work/work has mode $(stat -c %a work/work)" || sed -n '1s/^mount: [^ ]* /mount: /p' error
END
try() { # LABEL SETPRIV-OPTION...
    rm -rf lower upper work mnt
    echo "$1: $("${user[@]}" unshare --user --map-root-user --mount setpriv "${@:2}" bash try.sh)"
}
{
    try "all capabilities" --bounding-set=+all
    try "without CAP_DAC_OVERRIDE" --inh-caps=-dac_override --bounding-set=-dac_override
} | tee output
diff -u - output <<'END'
all capabilities: mounted, work/work has mode 0
without CAP_DAC_OVERRIDE: mount: cannot mount overlay read-only.
END

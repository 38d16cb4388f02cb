#!/usr/bin/env bash
# Linux, overlayfs in a user namespace: without the option userxattr it mounts, writes and removes files, but a
# directory of the lower layer cannot be removed: "Input/output error".
#
# Guess: a mount that succeeds works. Where the kernel may not mark a file, the mount is refused.
# Comes: the mark for a directory that hides the lower one is an attribute that a user may not set ("trusted."). The
# mount does not try it, and rm -r fails with EIO when it comes to a directory. With userxattr the mark is a "user."
# attribute, and everything works.
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
mkdir -p lower/dir upper work mnt
echo text >lower/file
echo text >lower/dir/file
mount -t overlay overlay -o "lowerdir=lower,upperdir=upper,workdir=work$1" mnt || exit 77
cd mnt
echo "mounted$1"
echo new >file && echo "file written"
rm dir/file && echo "file removed"
rmdir dir 2>error && echo "directory removed" || sed 's/.*: //' error
END
for options in "" ",userxattr"; do
    rm -rf lower upper work mnt
    "${user[@]}" unshare --user --map-root-user --mount bash try.sh "$options" ||
        { echo "skip: no overlays in user namespaces here"; exit 77; }
done | tee output
diff -u - output <<'END'
mounted
file written
file removed
Input/output error
mounted,userxattr
file written
file removed
directory removed
END

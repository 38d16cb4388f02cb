#!/usr/bin/env bash
# git 2.39.5: "-c safe.directory=*" lets git read a repository of another owner, but not fetch from it.
#
# Guess: the option counts for a fetch from a path, too: git passes the configuration of its command line on.
# Comes: git starts upload-pack for the other repository without it, and that refuses. Only a file reaches it.
set -euo pipefail
[ "$(git --version 2>/dev/null || true)" = "git version 2.39.5" ] || { echo "skip: needs git 2.39.5"; exit 77; }
[ "$(id -u)" = 0 ] || { echo "skip: needs root, to make a repository of another owner"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
unset GIT_CONFIG_COUNT GIT_DIR SUDO_UID

git init --quiet theirs
git -C theirs -c user.name=t -c user.email=t@example.org commit --quiet --allow-empty --message first
chown -R 65534:65534 theirs
git init --quiet --bare ours
printf '[safe]\n\tdirectory = *\n' >safe

try() { # LABEL COMMAND...
    if "${@:2}" >/dev/null 2>log; then echo "$1: allowed"; else echo "$1: $(grep -o "dubious ownership" log)"; fi
}
{
    try "read, no option" git -C theirs rev-parse HEAD
    try "read, -c" git -c safe.directory='*' -C theirs rev-parse HEAD
    try "fetch, -c" git -c safe.directory='*' -C ours fetch --quiet "$work/theirs" HEAD
    try "fetch, GIT_CONFIG_COUNT" env GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*' \
        git -C ours fetch --quiet "$work/theirs" HEAD
    try "fetch, a file" env GIT_CONFIG_GLOBAL="$work/safe" git -C ours fetch --quiet "$work/theirs" HEAD
} | tee output
diff -u - output <<'END'
read, no option: dubious ownership
read, -c: allowed
fetch, -c: dubious ownership
fetch, GIT_CONFIG_COUNT: dubious ownership
fetch, a file: allowed
END

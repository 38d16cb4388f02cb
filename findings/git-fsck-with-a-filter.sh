#!/usr/bin/env bash
# git 2.39.5: a fetch with a filter refuses mistakes that fetch.fsck.* says to ignore.
#
# The history has a tree with a padded mode (0100644), as old programs wrote it; git fsck warns of it.
# Guess: fetch.fsck.zeroPaddedFilemode=ignore counts for every fetch that checks objects (fetch.fsckObjects).
# Comes: with --filter git passes the wish to check on, but not what to ignore. The fetch fails.
set -euo pipefail
[ "$(git --version 2>/dev/null || true)" = "git version 2.39.5" ] || { echo "skip: needs git 2.39.5"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
unset GIT_CONFIG_COUNT GIT_DIR

git init --quiet old
git -C old config uploadpack.allowFilter true
blob=$(echo hello | git -C old hash-object -w --stdin)
tree=$(printf "0100644 file\0$(sed 's/../\\x&/g' <<<"$blob")" | git -C old hash-object -t tree -w --stdin --literally)
commit=$(git -C old -c user.name=t -c user.email=t@example.org commit-tree "$tree" -m first)
git -C old update-ref refs/heads/main "$commit"

try() { # LABEL OPTION...
    rm -rf new
    git init --quiet --bare new
    git -C new -c fetch.fsckObjects=true "${@:2}" "file://$work/old" main >log 2>&1 && echo "$1: fetched" ||
        echo "$1: $(sed -n 's/^error: object [0-9a-f]*: //p' log)"
}
{
    try "checked" fetch --quiet
    try "checked, ignored" -c fetch.fsck.zeroPaddedFilemode=ignore fetch --quiet
    try "checked, ignored, filtered" -c fetch.fsck.zeroPaddedFilemode=ignore fetch --quiet --filter=blob:none
} | tee output
diff -u - output <<'END'
checked: zeroPaddedFilemode: contains zero-padded file modes
checked, ignored: fetched
checked, ignored, filtered: zeroPaddedFilemode: contains zero-padded file modes
END

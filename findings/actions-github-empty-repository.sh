#!/usr/bin/env bash
# @actions/github 4.0.0, 6.0.1 and 9.1.1: an empty GITHUB_REPOSITORY is like none, and the error names something else.
#
# Guess: context.repo says that GITHUB_REPOSITORY must be owner/repo, as the text of its own error does.
# Comes: with an empty variable it takes the owner from the event. An event that knows the full name of its repository, and
# no owner, makes "Cannot read properties of undefined (reading 'login')". An event without a repository brings the error
# that names the variable. Each action that prints a link, such as actions/upload-artifact v4 and later, reads context.repo.
set -euo pipefail
for program in node npm; do command -v $program >/dev/null || { echo "skip: needs $program"; exit 77; }; done
[ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] || { echo "skip: needs node 20"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --ignore-scripts --no-audit --no-fund \
  github-4@npm:@actions/github@4.0.0 github-6@npm:@actions/github@6.0.1 github-9@npm:@actions/github@9.1.1 >/dev/null
echo '{"repository": {"full_name": "o/r"}}' >full.json
echo '{"repository": {"name": "r", "owner": {"login": "o"}}}' >owner.json
echo '{}' >empty.json
cat >repo.mjs <<'JS'
const { context } = await import(process.argv[2])
try {
  console.log(JSON.stringify(context.repo))
} catch (err) {
  console.log(err.message)
}
JS
for version in 4 6 9; do
  for event in full owner empty; do
    echo "$version, $event: $(GITHUB_REPOSITORY='' GITHUB_EVENT_PATH=$PWD/$event.json node repo.mjs github-$version)"
  done
  echo "$version, named: $(GITHUB_REPOSITORY=a/b GITHUB_EVENT_PATH=$PWD/full.json node repo.mjs github-$version)"
done | tee seen
for version in 4 6 9; do
  echo "$version, full: Cannot read properties of undefined (reading 'login')"
  echo "$version, owner: {\"owner\":\"o\",\"repo\":\"r\"}"
  echo "$version, empty: context.repo requires a GITHUB_REPOSITORY environment variable like 'owner/repo'"
  echo "$version, named: {\"owner\":\"a\",\"repo\":\"b\"}"
done >expected
diff expected seen && echo "as expected"

#!/usr/bin/env bash
# @actions/glob 0.4.0 and 0.7.0: a set with a POSIX class such as [[:alpha:]]* selects files in one version only.
#
# Guess: both versions of the package, with the options that hashFiles uses, select the same files; a POSIX class is
# either known to the package or not. Comes: its minimatch went from 3 to 10. 3 reads "[[:alpha:]" as a set of
# characters that "]" has to follow; 10 knows the class. What a key of a cache is made of changes with the package.
set -euo pipefail
for tool in node npm; do command -v "$tool" >/dev/null || { echo "skip: needs $tool"; exit 77; }; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir tree
touch tree/{abc,7,a]}
cat >main.mjs <<'END'
import path from 'node:path'
const [at] = process.argv.slice(2)
const glob = await import(path.resolve(at, 'node_modules/@actions/glob/lib/glob.js'))
const write = process.stdout.write.bind(process.stdout)
process.stdout.write = () => true // the package's debug messages
process.chdir('tree')
for (const pattern of ['[a-z]*', '[[:alpha:]]*', '[[:digit:]]']) {
    const found = await (await glob.create(pattern, { followSymbolicLinks: false })).glob()
    write(`${at} ${pattern} ${found.map((file) => path.basename(file)).sort().join(' ')}\n`)
}
END
for version in 0.4.0 0.7.0; do
  mkdir "$version"
  echo '{"private": true}' >"$version/package.json"
  npm install --silent --no-audit --no-fund --ignore-scripts --save-exact --prefix "$version" "@actions/glob@$version" >/dev/null
  node main.mjs "$version"
done | tee output
diff -u - output <<'END'
0.4.0 [a-z]* a] abc
0.4.0 [[:alpha:]]* a]
0.4.0 [[:digit:]] 
0.7.0 [a-z]* a] abc
0.7.0 [[:alpha:]]* a] abc
0.7.0 [[:digit:]] 7
END

#!/usr/bin/env bash
# Ruby 3.1.2, File.fnmatch? with the flags of GitLab's rules:changes: a class of characters is not that of a shell.
#
# Guess: a ] directly behind the [ is a member of the class, a range from c to a is empty or refused, and a backslash at the
# end of a pattern is itself. Comes: the first ] ends the class, so that []a] never matches and [!] matches each character;
# [c-a] matches its two ends, and not b; a backslash at the end stands for nothing; and one { without its end makes the
# whole pattern match nothing, while a } alone is itself.
set -euo pipefail
command -v ruby >/dev/null || { echo "skip: needs ruby"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
ruby --version
ruby -e '
flags = File::FNM_PATHNAME | File::FNM_DOTMATCH | File::FNM_EXTGLOB
seen = [["[]a]", "]"], ["[]a]", "a"], ["[!]", "x"], ["[c-a]", "a"], ["[c-a]", "b"], ["[c-a]", "c"], ["a\\", "a"],
        ["a\\", "a\\"], ["{a", "{a"], ["a}", "a}"]].map do |pattern, path|
  "#{pattern} #{path} #{File.fnmatch?(pattern, path, flags)}"
end
puts seen
want = ["[]a] ] false", "[]a] a false", "[!] x true", "[c-a] a true", "[c-a] b false", "[c-a] c true", "a\\ a true",
        "a\\ a\\ false", "{a {a false", "a} a} true"]
abort "the behaviour has changed" unless seen == want
'

#!/usr/bin/env bash
# Go's yaml v4 and psych end a line, and so a comment, at U+0085 and U+2028; the YAML parsers of npm do not.
#
# Guess: all of them take only line feed and carriage return for line breaks. YAML 1.2 says so, and Go's yaml v4 is made
# for it.
# Comes: after "# note" and such a character a key of the comment's line counts for Go's yaml v4 and for psych.
set -euo pipefail
psych=$(ruby -rpsych -e 'puts Psych::VERSION' 2>/dev/null || true)
[ "$psych" = 4.0.3 ] || { echo "skip: needs ruby with psych 4.0.3"; exit 77; }
for tool in go npm; do command -v "$tool" >/dev/null || { echo "skip: needs $tool"; exit 77; }; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
echo '{"private": true}' >package.json
npm install --silent --no-audit --no-fund --save-exact js-yaml@5.5.0 yaml@2.9.1 >/dev/null
go mod init finding 2>/dev/null
go get go.yaml.in/yaml/v4@v4.0.0 2>/dev/null
printf 'a: 1 # note\u0085b: 2\n' >next-line
printf 'a: 1 # note\u2028b: 2\n' >separator

cat >main.go <<'END'
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"go.yaml.in/yaml/v4"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	var v map[string]any
	if err := yaml.Unmarshal(text, &v); err != nil {
		panic(err)
	}
	text, _ = json.Marshal(v)
	fmt.Println(string(text))
}
END
cat >main.mjs <<'END'
import { load } from 'js-yaml'
import { parse } from 'yaml'
import { readFileSync } from 'node:fs'
console.log(JSON.stringify({ 'js-yaml': load, yaml: parse }[process.argv[2]](readFileSync(0, 'utf8'))))
END
go build -o program .
for file in next-line separator; do
    echo "$file: go-v4 $(./program <$file)," \
        "psych $(ruby -rpsych -rjson -e 'puts Psych.load(STDIN.read).to_json' <$file)," \
        "yaml $(node main.mjs yaml <$file), js-yaml $(node main.mjs js-yaml <$file)"
done | tee output
diff -u - output <<'END'
next-line: go-v4 {"a":1,"b":2}, psych {"a":1,"b":2}, yaml {"a":1}, js-yaml {"a":1}
separator: go-v4 {"a":1,"b":2}, psych {"a":1,"b":2}, yaml {"a":1}, js-yaml {"a":1}
END

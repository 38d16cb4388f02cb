#!/usr/bin/env bash
# psych 4.0.3 (ruby) reads numbers that no other YAML parser here reads, and texts where they read numbers.
#
# Guess: psych reads YAML 1.1, so npm's yaml, told that a text is YAML 1.1, reads the same values. Go's yaml v4 differs
# only in what YAML 1.2 changed.
# Comes: 1,000 is a number for psych alone; 08 and 1e3 are numbers for all others and texts for psych. A time of day is
# 45045 by YAML 1.1 and a text by 1.2. 014 is 12 for Go's yaml v4 as well, and 14 by YAML 1.2.
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
printf '%s\n' 014 0o14 08 0b11 1_000 1,000 1e3 12:30:45 >values

cat >main.go <<'END'
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"go.yaml.in/yaml/v4"
)

func main() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var v any
		if err := yaml.Unmarshal(lines.Bytes(), &v); err != nil {
			panic(err)
		}
		text, _ := json.Marshal(v)
		fmt.Println(string(text))
	}
}
END
cat >main.mjs <<'END'
import { load } from 'js-yaml'
import { parse } from 'yaml'
import { readFileSync } from 'node:fs'
const read = { 'js-yaml': load, yaml: t => parse(t), 'yaml-1.1': t => parse(t, { version: '1.1' }) }[process.argv[2]]
for (const line of readFileSync(0, 'utf8').trim().split('\n')) console.log(JSON.stringify(read(line)))
END
{
    echo "value psych go-v4 yaml-1.1 yaml js-yaml"
    paste -d' ' values \
        <(ruby -rpsych -rjson -e 'STDIN.each_line { |l| puts Psych.load(l).to_json }' <values) <(go run . <values) \
        <(node main.mjs yaml-1.1 <values) <(node main.mjs yaml <values) <(node main.mjs js-yaml <values)
} | tee output
diff -u - output <<'END'
value psych go-v4 yaml-1.1 yaml js-yaml
014 12 12 12 14 14
0o14 "0o14" 12 "0o14" 12 12
08 "08" 8 8 8 8
0b11 3 3 3 "0b11" "0b11"
1_000 1000 1000 1000 "1_000" "1_000"
1,000 1000 "1,000" "1,000" "1,000" "1,000"
1e3 "1e3" 1000 1000 1000 1000
12:30:45 45045 "12:30:45" 45045 "12:30:45" "12:30:45"
END

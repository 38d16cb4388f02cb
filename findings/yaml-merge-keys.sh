#!/usr/bin/env bash
# js-yaml 5.5.0 and npm's yaml 2.9.1 read "<<" as an ordinary key; psych 4.0.3 and Go's yaml v4 merge.
#
# Guess: js-yaml merges, as it did in version 4, and so do all four: files of CI systems use "<<" with aliases.
# Comes: both parsers of npm leave a key "<<" with the mapping as its value. The merged keys are not there. No error.
set -euo pipefail
psych=$(ruby -rpsych -e 'puts Psych::VERSION' 2>/dev/null || true)
[ "$psych" = 4.0.3 ] || { echo "skip: needs ruby with psych 4.0.3"; exit 77; }
for tool in go npm; do command -v "$tool" >/dev/null || { echo "skip: needs $tool"; exit 77; }; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
echo '{"private": true}' >package.json
npm install --silent --no-audit --no-fund --save-exact js-yaml@5.5.0 js-yaml-4@npm:js-yaml@4.1.0 yaml@2.9.1 >/dev/null
go mod init finding 2>/dev/null
go get go.yaml.in/yaml/v4@v4.0.0 2>/dev/null
printf '%s\n' 'base: &base {image: one}' 'job:' '  <<: *base' '  stage: test' >file

cat >main.go <<'END'
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"go.yaml.in/yaml/v4"
)

func main() {
	text, err := os.ReadFile("file")
	if err != nil {
		panic(err)
	}
	var v map[string]any
	if err := yaml.Unmarshal(text, &v); err != nil {
		panic(err)
	}
	text, _ = json.Marshal(v["job"])
	fmt.Println("go-v4", string(text))
}
END
cat >main.mjs <<'END'
import { load } from 'js-yaml'
import * as four from 'js-yaml-4'
import { parse } from 'yaml'
import { readFileSync } from 'node:fs'
const text = readFileSync('file', 'utf8')
const readers = { 'js-yaml-4': four.load ?? four.default.load, 'js-yaml-5': load, yaml: t => parse(t) }
for (const [name, read] of Object.entries(readers))
    console.log(name, JSON.stringify(read(text).job))
END
{
    go run .
    ruby -rpsych -rjson -e 'puts "psych " + Psych.load(File.read("file"), aliases: true)["job"].to_json'
    node main.mjs
} | tee output
diff -u - output <<'END'
go-v4 {"image":"one","stage":"test"}
psych {"image":"one","stage":"test"}
js-yaml-4 {"image":"one","stage":"test"}
js-yaml-5 {"<<":{"image":"one"},"stage":"test"}
yaml {"<<":{"image":"one"},"stage":"test"}
END

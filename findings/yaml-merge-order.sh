#!/usr/bin/env bash
# psych 4.0.3 (ruby): a merge key replaces keys that stand before it.
#
# Guess: a key of the mapping itself wins against a merged one wherever it stands: "unless the key already exists in
# it", says the specification of merge keys, and mappings have no order.
# Comes: psych goes from top to bottom, and the later one wins. Go's yaml v4 keeps the mapping's own key. GitLab's
# server reads pipelines by psych.
set -euo pipefail
psych=$(ruby -rpsych -e 'puts Psych::VERSION' 2>/dev/null || true)
[ "$psych" = 4.0.3 ] || { echo "skip: needs ruby with psych 4.0.3"; exit 77; }
command -v go >/dev/null || { echo "skip: needs Go"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
go mod init finding 2>/dev/null
go get go.yaml.in/yaml/v4@v4.0.0 2>/dev/null
printf '%s\n' 'base: &base {image: merged}' \
    'before: {image: own, <<: *base}' 'after: {<<: *base, image: own}' >file

cat >main.go <<'END'
package main

import (
	"fmt"
	"os"

	"go.yaml.in/yaml/v4"
)

func main() {
	text, err := os.ReadFile("file")
	if err != nil {
		panic(err)
	}
	var v map[string]map[string]string
	if err := yaml.Unmarshal(text, &v); err != nil {
		panic(err)
	}
	fmt.Println("go-v4: own key first:", v["before"]["image"], "last:", v["after"]["image"])
}
END
{
    go run .
    ruby -rpsych -e 'v = Psych.load(File.read("file"), aliases: true)
        puts "psych: own key first: #{v["before"]["image"]} last: #{v["after"]["image"]}"'
} | tee output
diff -u - output <<'END'
go-v4: own key first: own last: own
psych: own key first: merged last: own
END

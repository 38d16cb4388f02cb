#!/usr/bin/env bash
# Go 1.26: go test -fuzz ends a target that takes ten seconds for one input, whatever -fuzztime and -timeout say.
#
# Guess: -fuzztime=20x runs 20 inputs however long they take: a test without fuzzing takes the same inputs without a
# word, and -timeout bounds the whole. Comes: the worker process of the fuzzer ends itself after ten seconds in one input.
# The failure is "fuzzing process hung or terminated unexpectedly", and no flag changes the bound.
set -euo pipefail
command -v go >/dev/null || { echo "skip: needs Go"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
go mod init finding 2>/dev/null
[[ $(go version) == "go version go1.26."* ]] || { echo "skip: needs Go 1.26"; exit 77; }
cat >slow_test.go <<'END'
package finding

import (
	"os"
	"testing"
	"time"
)

func FuzzSlow(f *testing.F) {
	pause, err := time.ParseDuration(os.Getenv("PAUSE"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add("a")
	f.Fuzz(func(t *testing.T, text string) { time.Sleep(pause) })
}
END
fuzz() {
  if PAUSE=$1 go test -run '^FuzzSlow$' "${@:2}" >log 2>&1; then
    echo "$* passes"
  else
    echo "$*: $(grep -o 'fuzzing process hung or terminated unexpectedly' log | head -n 1)"
  fi
}
{
  fuzz 11s
  fuzz 5s -fuzz FuzzSlow -fuzztime 1x -fuzzminimizetime 0 -parallel 1
  fuzz 11s -fuzz FuzzSlow -fuzztime 1x -fuzzminimizetime 0 -parallel 1 -timeout 10m
} | tee output
diff -u - output <<'END'
11s passes
5s -fuzz FuzzSlow -fuzztime 1x -fuzzminimizetime 0 -parallel 1 passes
11s -fuzz FuzzSlow -fuzztime 1x -fuzzminimizetime 0 -parallel 1 -timeout 10m: fuzzing process hung or terminated unexpectedly
END

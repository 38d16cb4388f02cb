#!/bin/sh
# Runs a manager with a VM embedded in the program, submits three builds, and shows their results. STEPMUX is the
# program.
set -eu
dir=$(mktemp -d)
export STEPMUX_MANAGER="$dir/manager.sock"
"$STEPMUX" manager --state "$dir/state" --capacity 2 --http-listen 0 -v 2>"$dir/log" &
manager=$!
trap 'kill $manager; wait $manager || true; rm -rf "$dir"' EXIT
until [ -S "$STEPMUX_MANAGER" ]; do kill -0 $manager; sleep 0.05; done

one=$("$STEPMUX" submit examples/hello.yml)
"$STEPMUX" submit examples/hello.yml
"$STEPMUX" submit --wait examples/hello.yml
"$STEPMUX" logs -f "$one" >/dev/null
"$STEPMUX" builds
"$STEPMUX" ps
echo "the status page was at $(grep -o 'http://[0-9.:]*/' "$dir/log")"

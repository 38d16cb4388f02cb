#!/usr/bin/env bash
# @actions/expressions 0.3.61: case computes all of its values, also those that it does not choose.
#
# Guess: as && and || do, case computes the conditions in turn, and only the value of the first one that is true.
# Comes: all are computed first. A mistake in a value that is not chosen is an error of the whole expression.
set -euo pipefail
for tool in node npm; do command -v "$tool" >/dev/null || { echo "skip: needs $tool"; exit 77; }; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
echo '{"private": true}' >package.json
npm install --silent --no-audit --no-fund --save-exact @actions/expressions@0.3.61 >/dev/null
cat >main.mjs <<'END'
import { Evaluator, Lexer, Parser, data } from '@actions/expressions'
for (const text of ["true || fromJSON('no JSON')", "case(true, 1, 2)", "case(true, 1, fromJSON('no JSON'))"]) {
    let result
    try {
        const tree = new Parser(new Lexer(text).lex().tokens, [], []).parse()
        result = new Evaluator(tree, new data.Dictionary()).evaluate().coerceString()
    } catch {
        result = 'an error'
    }
    console.log(text, '=', result)
}
END
node main.mjs | tee output
diff -u - output <<'END'
true || fromJSON('no JSON') = true
case(true, 1, 2) = 1
case(true, 1, fromJSON('no JSON')) = an error
END

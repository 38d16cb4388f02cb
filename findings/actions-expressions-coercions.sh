#!/usr/bin/env bash
# @actions/expressions 0.3.61: more texts are numbers than documented, and without regard to case one letter equals two.
#
# Guess: as GitHub documents its expressions, a text in a comparison with a number counts if it is in "any legal JSON
# number format", and is not a number otherwise. Texts are compared without regard to case: a letter equals its capital.
# Comes: the package uses JavaScript's Number, so that 0b11, 0o17, 0xff and "1." are numbers. It compares texts in
# capitals, and the capital of one letter may be two: "straße" equals "STRASSE".
set -euo pipefail
for tool in node npm; do command -v "$tool" >/dev/null || { echo "skip: needs $tool"; exit 77; }; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
echo '{"private": true}' >package.json
npm install --silent --no-audit --no-fund --save-exact @actions/expressions@0.3.61 >/dev/null
cat >main.mjs <<'END'
import { Evaluator, Lexer, Parser, data } from '@actions/expressions'
const texts = ["'12' == 12", "'1_2' == 12", "'0b11' == 3", "'0o17' == 15", "'0xff' == 255", "'1.' == 1",
    "'Straße' == 'sTRASSE'", "'e' == 'é'"]
for (const text of texts) {
    const tree = new Parser(new Lexer(text).lex().tokens, [], []).parse()
    console.log(text, new Evaluator(tree, new data.Dictionary()).evaluate().coerceString())
}
END
node main.mjs | tee output
diff -u - output <<'END'
'12' == 12 true
'1_2' == 12 false
'0b11' == 3 true
'0o17' == 15 true
'0xff' == 255 true
'1.' == 1 true
'Straße' == 'sTRASSE' true
'e' == 'é' false
END

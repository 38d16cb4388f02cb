#!/usr/bin/env bash
# SARIF 2.1.0, @microsoft/sarif-multitool 5.7.0: a result needs a rule, which the types and the schema leave out.
#
# Guess: a log of results with a level and a message alone is valid: ruleId is optional in the types (@types/sarif 2.1.7), as
# in the JSON schema.
# Comes: the validator's error SARIF1010: section 3.27.5 of the specification asks for ruleId or rule.id. With a ruleId that
# no list of rules describes, there is no error.
set -euo pipefail
command -v npm >/dev/null || { echo "skip: needs npm"; exit 77; }
[ "$(uname -sm)" = "Linux x86_64" ] || { echo "skip: needs Linux on x86_64"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --ignore-scripts --no-audit --no-fund \
  @types/sarif@2.1.7 @microsoft/sarif-multitool-linux@5.7.0 >/dev/null
chmod +x node_modules/@microsoft/sarif-multitool-linux/Sarif.Multitool
check() { # NAME RESULT
  cat >"$1.sarif" <<JSON
{"version": "2.1.0", "runs": [{"tool": {"driver": {"name": "a"}}, "results": [$2]}]}
JSON
  printf '%s: ' "$1"
  DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1 node_modules/@microsoft/sarif-multitool-linux/Sarif.Multitool validate "$1.sarif" \
    --level Error --kind Fail 2>&1 | grep -o 'error SARIF[0-9]*' || echo "no error"
}
{
  grep -q '^ *ruleId?: ' node_modules/@types/sarif/index.d.ts && echo "types: optional"
  check without '{"level": "warning", "message": {"text": "m"}}'
  check with '{"ruleId": "r", "level": "warning", "message": {"text": "m"}}'
} | tee seen
printf 'types: optional\nwithout: error SARIF1010\nwith: no error\n' >expected
diff expected seen && echo "as expected"

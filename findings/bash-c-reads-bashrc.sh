#!/usr/bin/env bash
# bash 5.2 of Debian: below a login shell that is not bash, each "bash -c" of an SSH session reads ~/.bashrc.
#
# Guess: only the shell that sshd itself starts may do that: a "bash -c" in a script is not interactive and reads none.
# Comes: bash decides by SSH_CLIENT or SSH_CONNECTION in the environment and by SHLVL. dash and BusyBox set no SHLVL, so
# each bash below them takes itself for sshd's own. A shell of bash above it, or SHLVL=1, stops that.
set -euo pipefail
[[ $BASH_VERSION == 5.2.15* ]] || { echo "skip: needs bash 5.2.15"; exit 77; }
command -v dash >/dev/null || { echo "skip: needs dash"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
echo 'echo .bashrc' >.bashrc
# The environment that sshd gives to a command.
session=(env -i HOME="$work" PATH="$PATH" SSH_CLIENT="192.0.2.1 40000 22" SSH_CONNECTION="192.0.2.1 40000 192.0.2.2 22")

try() { # LABEL COMMAND...
    echo "$1: $("${@:2}" | paste -sd ' ')"
}
{
    try "no session, dash, bash" env -i HOME="$work" PATH="$PATH" dash -c 'bash -c "echo script"; :'
    try "dash, bash, twice" "${session[@]}" dash -c 'bash -c "echo script"; bash -c "echo script"; :'
    try "bash, bash" "${session[@]}" bash -c 'echo outer; bash -c "echo script"; :'
    try "SHLVL=1, dash, bash" "${session[@]}" SHLVL=1 dash -c 'bash -c "echo script"; :'
} | tee output
diff -u - output <<'END'
no session, dash, bash: script
dash, bash, twice: .bashrc script .bashrc script
bash, bash: .bashrc outer script
SHLVL=1, dash, bash: script
END

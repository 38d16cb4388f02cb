package connector

import (
	"slices"
	"strconv"
	"time"
)

// Every command for a VM is built here, and nowhere else, as an argument vector; where a login shell stands
// in between, mux quotes it. No job variable is ever part of one.

// secretFlag tells serve to read the build's secret from its stdin.
const secretFlag = "--secret-stdin"

// serveArgv starts the build's step runner.
func serveArgv(runner []string, socket string, secret bool) []string {
	argv := runnerArgv(runner, "steps", "serve", "--socket", socket)
	if secret {
		argv = append(argv, secretFlag)
	}
	return argv
}

// proxyArgv bridges stdin and stdout to the build's socket.
func proxyArgv(runner []string, socket string) []string {
	return runnerArgv(runner, "steps", "proxy", "--socket", socket)
}

// relayArgv starts the VM's relay.
func relayArgv(runner []string, tempDir string) []string {
	return runnerArgv(runner, "steps", "relay", "--temp-dir", tempDir)
}

// removeArgv removes a build's directory that its serve could not remove itself.
func removeArgv(dir string) []string { return []string{"rm", "-rf", "--", dir} }

func runnerArgv(runner []string, args ...string) []string {
	return slices.Concat(runner, args)
}

// scriptWrapper runs a shell whose script arrives on stdin, on a machine that has nothing of ours. SSH
// cannot end a process with its channel, so the wrapper makes stdin a leash: it takes $1 bytes of script
// and then waits for the end of stdin, on which the shell's whole session gets SIGTERM and, after $2
// seconds, SIGKILL. A script that did not arrive whole is not run. What the shell leaves in its session
// is killed at its end.
const scriptWrapper = `n=$1 grace=$2; shift 2
f=$(mktemp "${TMPDIR:-/tmp}/stepmux-script.XXXXXX") || exit 3
trap 'rm -f "$f"' EXIT; trap 'exit 3' TERM INT HUP
head -c "$n" >"$f" || exit 3
[ "$(wc -c <"$f")" -eq "$n" ] || { echo "the script did not arrive whole" >&2; exit 3; }
exec 3<&0 4<"$f"; rm -f "$f"
setsid "$@" <&4 3<&- 4<&- & job=$!
setsid sh -c 'while read -r x; do :; done; kill -s TERM -- "-$1"; sleep "$2"; kill -s KILL -- "-$1"' leash "$job" "$grace" <&3 >/dev/null 2>&1 4<&- & leash=$!
trap : TERM INT HUP
exec 3<&- 4<&-
while :; do wait "$job" 2>/dev/null; s=$?; kill -0 "$job" 2>/dev/null || break; done
for group in "$leash" "$job"; do kill -s KILL -- "-$group" 2>/dev/null; done
exit "$s"`

// scriptArgv runs a shell for a script of n bytes that follows on stdin.
func scriptArgv(shell []string, n int, grace time.Duration) []string {
	seconds := strconv.Itoa(int((grace + time.Second - 1) / time.Second))
	return slices.Concat([]string{"sh", "-c", scriptWrapper, "stepmux-script", strconv.Itoa(n), seconds}, shell)
}

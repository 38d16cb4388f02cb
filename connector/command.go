package connector

import (
	"strconv"
	"time"

	"github.com/stepmux/stepmux/internal/wire"
)

// Every command line for a VM is built here, and nowhere else, from argument vectors that wire.Quote
// makes safe for the login shell. No job variable is ever part of one.

// serveLine starts the build's step runner.
func serveLine(runner []string, socket string) (string, error) {
	return runnerLine(runner, "steps", "serve", "--socket", socket)
}

// proxyLine bridges stdin and stdout to the build's socket.
func proxyLine(runner []string, socket string) (string, error) {
	return runnerLine(runner, "steps", "proxy", "--socket", socket)
}

// removeLine removes a build's directory that its serve could not remove itself.
func removeLine(dir string) (string, error) { return wire.Quote("rm", "-rf", "--", dir) }

func runnerLine(runner []string, args ...string) (string, error) {
	return wire.Quote(append(append([]string{}, runner...), args...)...)
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

// scriptLine runs a shell for a script of n bytes that follows on stdin.
func scriptLine(shell []string, n int, grace time.Duration) (string, error) {
	seconds := strconv.Itoa(int((grace + time.Second - 1) / time.Second))
	return wire.Quote(append([]string{"sh", "-c", scriptWrapper, "stepmux-script", strconv.Itoa(n), seconds}, shell...)...)
}

package connector

import (
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// Every command of this package for a VM is built here as an argument vector; mux quotes it for a login shell. No
// variable of a job is ever part of one.

// secretFlag makes serve read the build's secret from its stdin.
const secretFlag = "--secret-stdin"

// socketOnStdin, in place of a socket's path, makes serve or proxy read the path from its stdin, before the secret.
const socketOnStdin = "-"

// serveArgv starts the build's step runner, which reads its secret from stdin.
func (cfg *Config) serveArgv(runner []string, socket string) []string {
	return slices.Concat(runner, []string{"steps", "serve", "--socket", socket, secretFlag},
		cfg.Args(vmconfig.LingerFlag), cfg.ServeArgs)
}

// proxyArgv bridges stdin and stdout to the build's socket.
func proxyArgv(runner []string, socket string) []string {
	return slices.Concat(runner, []string{"steps", "proxy", "--socket", socket})
}

// endArgv ends the rest of a build whose serve does not end by itself, and prints the processes and directories left.
func endArgv(runner []string, socket string) []string {
	return slices.Concat(runner, []string{"steps", "end", "--socket", socket})
}

// removeArgv removes a build's directory if its serve could not.
func removeArgv(dir string) []string { return []string{"rm", "-rf", "--", dir} }

// leashWrapper gives a leash and a directory to a serve that does not watch its stdin, on a machine without a
// stepmux. $1 is the socket's path, $2 the grace in seconds, the rest the command, to which the path is appended. The
// wrapper makes the directory (0700) in a base directory of this user, locks it if there is a flock, so that no
// stepmux sweeps it, and removes it at the end.
//
// serve runs in a session of its own. Two processes, each in a session of its own too, watch stdin, which also ends
// when the wrapper is gone, because sshd closes it. Then they end serve's group with SIGTERM and, after the grace,
// its whole session with SIGKILL, and remove the directory. So nothing is left, whichever one of these processes is
// killed.
const leashWrapper = `socket=$1 grace=$2; shift 2
mask=$(umask); umask 077
no() { echo "$1" >&2; exit 3; }
command -v setsid >/dev/null || no "the program setsid is missing on the VM: install util-linux"
name=${socket##*/} dir=${socket%/*}; id=${dir##*/} base=${dir%/*}; tmp=${base%/*}
[ -d "${tmp:=/}" ] || no "$tmp is no directory"
case $(LC_ALL=C ls -ldL "$tmp") in
????????w[!tT]*) no "$tmp lets other users rename what is in it: chmod +t $tmp";;
esac
own() { mkdir "$1" 2>/dev/null; [ ! -L "$1" ] && [ -d "$1" ] && [ -O "$1" ]; }
own "$base" || { base=$base-$(id -u); own "$base"; } || no "$base cannot be made, or is no directory of this user's"
chmod 700 "$base" || exit 3
dir=$base/$id socket=$base/$id/$name
held=
for try in 1 2 3; do
	new=; why=$(mkdir "$dir" 2>&1) && new=1
	[ ! -L "$dir" ] || no "$dir is a symbolic link"
	[ -n "$new" ] || [ -d "$dir" ] || no "directory of build $id cannot be made: $why"
	{ command exec 9<"$dir"; } 2>/dev/null || continue
	if command -v flock >/dev/null && ! flock -n 9; then sleep 1; continue; fi
	[ ! "$dir" -ef /dev/fd/9 ] || { held=1; break; } # not swept in between
done
[ -n "$held" ] || no "build $id is already being served"
if [ -z "$new" ] && [ -n "$(ls -A "$dir")" ]; then
	{ read -r old <"$dir/.leash"; } 2>/dev/null || no "build $id is already being served, or $dir is another's"
	kill -s 0 -- "-$old" 2>/dev/null && no "build $id is already being served"
	rm -rf -- "$dir"/* "$dir"/.[!.]*
fi
chmod 700 "$dir" || exit 3
trap 'rm -rf -- "$dir"' EXIT
mkdir "$dir/work" || exit 3
clean='
session() {
	for f in /proc/[0-9]*/stat; do
		{ read -r line <"$f"; } 2>/dev/null || continue
		p=${f#/proc/} p=${p%/stat}; line=${line##*) }
		case $line in Z*) continue;; esac
		set -- "$1" $line
		[ "$5" != "$1" ] || echo "$p"
	done
}
clean() {
	kill -s KILL -- "-$1" 2>/dev/null
	for n in 1 2 3 4 5; do
		p=$(session "$1"); [ -n "$p" ] || break
		kill -s KILL $p 2>/dev/null
	done
	rm -rf -- "$2"
}
'
watch=$clean'
trap "" HUP
while read -r x; do :; done
echo >"$1/.ended"
[ -s "$1/.leash" ] || sleep 1
read -r serve <"$1/.leash" || { rm -rf -- "$1"; exit; }
kill -s TERM -- "-$serve"; kill -s CONT -- "-$serve"
n=$2; while [ "$n" -gt 0 ] && kill -s 0 -- "-$serve"; do sleep 1; n=$((n-1)); done
clean "$serve" "$1"'
eval "$clean"
exec 3<&0 </dev/null
setsid sh -c "$watch" leash "$dir" "$grace" <&3 >/dev/null 2>&1 3<&- & one=$!
setsid sh -c "$watch" leash "$dir" "$grace" <&3 >/dev/null 2>&1 3<&- & two=$!
exec 3<&-
umask "$mask" # that of the login, for the job
setsid sh -c 'echo "$$" >"$1/.leash"; shift; exec "$@"' leash "$dir" "$@" "$socket" </dev/null 9<&- & serve=$!
trap 'kill -s TERM -- "-$serve" 2>/dev/null; kill -s CONT -- "-$serve" 2>/dev/null' TERM INT HUP
while :; do wait "$serve" 2>/dev/null; s=$?; kill -0 "$serve" 2>/dev/null || break; done
[ ! -e "$dir/.ended" ] || s=0
for group in "$one" "$two"; do kill -s KILL -- "-$group" 2>/dev/null; done
clean "$serve" "$dir"
exit "$s"`

// leashArgv starts a serve under leashWrapper.
func leashArgv(runner []string, socket string, grace time.Duration) []string {
	inSeconds := strconv.Itoa(int((grace + time.Second - 1) / time.Second)) // rounded up
	return slices.Concat([]string{"sh", "-c", leashWrapper, "stepmux-leash", socket, inSeconds}, runner,
		[]string{"steps", "serve", "--socket"})
}

// workDir is the directory that leashWrapper makes beside the socket, for a job without a WorkDir.
func workDir(socket string) string { return path.Join(path.Dir(socket), "work") }

package connector

import (
	"path"
	"slices"
	"strconv"
	"time"
)

// Every command for a VM is built here, and nowhere else, as an argument vector; where a login shell stands
// in between, mux quotes it. No job variable is ever part of one.

// secretFlag tells serve to read the build's secret from its stdin.
const secretFlag = "--secret-stdin"

// socketOnStdin as a socket's path tells serve to read that from its stdin, before the secret.
const socketOnStdin = "-"

// serveArgv starts the build's step runner, which reads its secret from stdin.
func serveArgv(runner []string, socket string) []string {
	return runnerArgv(runner, "steps", "serve", "--socket", socket, secretFlag)
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

// leashWrapper gives a serve that does not watch its stdin the leash and the directory it needs, on a machine
// that has nothing of ours: $1 is the socket's path, $2 the grace in seconds, the rest the command to which
// the path is added. The directory is made (0700), in a base of this user's, locked where there is a flock, so
// that no stepmux sweeps it, and removed at the end.
//
// serve runs in a session of its own. Two processes, each in a session of its own too, watch stdin: when it
// ends, which it also does when the wrapper is gone (sshd closes it), they end serve's group with SIGTERM and,
// after the grace, all of its session with SIGKILL, and remove the directory. So whichever one of these
// processes is killed, nothing is left.
const leashWrapper = `socket=$1 grace=$2; shift 2
mask=$(umask); umask 077
no() { echo "$1" >&2; exit 3; }
command -v setsid >/dev/null || no "the program setsid is missing on the VM: install util-linux"
name=${socket##*/} dir=${socket%/*}; id=${dir##*/} base=${dir%/*}; tmp=${base%/*}
[ -d "${tmp:=/}" ] || no "$tmp is no directory"
case $(LC_ALL=C ls -ldL "$tmp") in ????????w[!tT]*) no "$tmp lets other users rename what is in it: chmod +t $tmp";; esac
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
	[ ! "$dir" -ef /dev/fd/9 ] || { held=1; break; } # nobody has swept it in between
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
kill -s TERM -- "-$serve"
n=$2; while [ "$n" -gt 0 ] && kill -s 0 -- "-$serve"; do sleep 1; n=$((n-1)); done
clean "$serve" "$1"'
eval "$clean"
exec 3<&0 </dev/null
setsid sh -c "$watch" leash "$dir" "$grace" <&3 >/dev/null 2>&1 3<&- & one=$!
setsid sh -c "$watch" leash "$dir" "$grace" <&3 >/dev/null 2>&1 3<&- & two=$!
exec 3<&-
umask "$mask" # that of the login, for the job
setsid sh -c 'echo "$$" >"$1/.leash"; shift; exec "$@"' leash "$dir" "$@" "$socket" </dev/null 9<&- & serve=$!
trap 'kill -s TERM -- "-$serve" 2>/dev/null' TERM INT HUP
while :; do wait "$serve" 2>/dev/null; s=$?; kill -0 "$serve" 2>/dev/null || break; done
[ ! -e "$dir/.ended" ] || s=0
for group in "$one" "$two"; do kill -s KILL -- "-$group" 2>/dev/null; done
clean "$serve" "$dir"
exit "$s"`

// leashArgv starts a serve that needs a leash.
func leashArgv(runner []string, socket string, grace time.Duration) []string {
	return slices.Concat([]string{"sh", "-c", leashWrapper, "stepmux-leash", socket, seconds(grace)}, runnerArgv(runner, "steps", "serve", "--socket"))
}

// workDir is the directory that leashWrapper makes beside the socket for a job that names none.
func workDir(socket string) string { return path.Join(path.Dir(socket), "work") }

// askWrapper runs a command that may hang, until it ends or stdin does.
const askWrapper = `exec 3<&0
if command -v setsid >/dev/null; then setsid "$@" </dev/null 3<&- & p=-$!; else "$@" </dev/null 3<&- & p=$!; fi
{ while read -r x; do :; done; kill -s KILL -- "$p"; } <&3 >/dev/null 2>&1 3<&- & watch=$!
wait "${p#-}"; s=$?
kill -s KILL "$watch"
exit "$s"`

// versionArgv asks a runner what it is.
func versionArgv(runner []string) []string {
	return slices.Concat([]string{"sh", "-c", askWrapper, "stepmux-ask"}, runnerArgv(runner, "--version"))
}

// inspectPrefix starts what inspectScript says: its lines may stand among a login shell's.
const inspectPrefix = "stepmux-inspect: "

// inspectScript tells the VM's platform, where the program $1 is and how its file begins, and which of the
// programs after it there are.
const inspectScript = `say() { echo "` + inspectPrefix + `$*"; }
say platform "$(uname -s)" "$(uname -m)"
case $1 in
*/*) p=$1; [ -f "$p" ] || p= ;;
*)
	p=$(command -v "$1"); IFS=:
	[ -n "$p" ] || for d in $PATH; do [ ! -f "$d/$1" ] || { p=$d/$1; break; }; done
	unset IFS;;
esac
if [ -n "$p" ]; then
	say program "$p"
	say head "$(od -An -tx1 -N20 "$p" | tr -d ' \n')"
fi
shift
for p; do command -v "$p" >/dev/null && say other "$p"; done; :`

// inspectArgv looks at a VM on which a program does not start.
func inspectArgv(program string) []string {
	return slices.Concat([]string{"sh", "-c", inspectScript, "stepmux-inspect", program}, otherRunners)
}

// uploadPrefix starts what uploadScript says.
const uploadPrefix = "stepmux-upload: "

// uploadScript puts a program of SHA-256 $2 and $3 bytes on the VM, in the user's cache if $1 is "cache" and
// else in a directory of the user's below $1. Where it is lies in its name, so that a version in use is not
// disturbed by another. If it is there already the script says "at PATH"; else "send", takes the bytes
// from stdin, checks them, renames them to where they belong and says "at PATH". The directory is private and
// no symbolic link, and nobody else may rename it. Programs that nobody asked for in 14 days and
// no process of this user's runs are removed.
const uploadScript = `place=$1 sum=$2 size=$3
umask 077
export LC_ALL=C
no() { echo "$1" >&2; exit 9; }
say() { echo "` + uploadPrefix + `$*"; }
uid=$(id -u)
case $place in
cache)
	case ${XDG_CACHE_HOME:-} in
	/*) up=$XDG_CACHE_HOME ;;
	*) case ${HOME:-} in /*) [ -d "$HOME" ] || no "$HOME is no directory"; up=$HOME/.cache ;; *) no "there is no HOME" ;; esac ;;
	esac
	mkdir -p "$up" || exit 9
	root=$up/stepmux ;;
*)
	up=$place root=${place%/}/stepmux-$uid
	[ -d "$up" ] || no "$up is no directory" ;;
esac
set -- $(ls -ldLn "$up")
case $1 in ?????w???[!tT]* | ????????w[!tT]*) no "$up lets other users rename what is in it" ;; esac
[ "$3" = "$uid" ] || [ "$3" = 0 ] || no "$up belongs to user $3"
[ -e "$root" ] || [ -L "$root" ] || mkdir "$root" || [ -d "$root" ] || exit 9
[ ! -L "$root" ] || no "$root is a symbolic link"
[ -d "$root" ] || no "$root is no directory"
[ -O "$root" ] || no "$root belongs to another user"
chmod 700 "$root" || exit 9
part=$(mktemp "$root/.part.XXXXXX") || { rmdir "$root" 2>/dev/null; exit 9; }
trap 's=$?; rm -f "$part"; [ "$s" = 0 ] || rmdir "${dir:-$root}" "$root" 2>/dev/null; exit "$s"' EXIT
trap 'exit 9' HUP INT TERM PIPE
{ printf '#!/bin/sh\nexit 0\n' >"$part" && chmod 700 "$part"; } || exit 9
"$part" || no "programs in $root cannot be executed: is it mounted noexec?"
sum() {
	s=$({ sha256sum || shasum -a 256 || openssl dgst -sha256 -r; } <"$1" 2>/dev/null)
	s=${s%% *}
	[ "${#s}" -eq 64 ] || s=$("$1" version --checksum 2>/dev/null | sed -n 's/^SHA-256: //p')
	echo "$s"
}
dir=$root/$(echo "$sum" | cut -c1-16)
program=$dir/stepmux
[ ! -L "$dir" ] || rm -f "$dir"
mkdir -p "$dir" || exit 9
if [ -f "$program" ] && [ ! -L "$program" ] && chmod 700 "$program" && [ "$(sum "$program")" = "$sum" ]; then
	touch "$dir"
else
	say send
	head -c "$size" >"$part" || exit 9
	[ "$(wc -c <"$part")" -eq "$size" ] || no "it did not arrive whole"
	[ "$(sum "$part")" = "$sum" ] || no "what arrived has another checksum than the file had"
	sync "$part" 2>/dev/null || sync
	{ mkdir -p "$dir" && mv -f "$part" "$program"; } || exit 9
	sync "$dir" 2>/dev/null || sync
fi
for old in "$root"/*; do
	[ "$old" != "$dir" ] && [ -n "$(find "$old" -prune -mtime +14)" ] || continue
	used=
	for p in /proc/[0-9]*/exe; do [ ! "$p" -ef "$old/stepmux" ] || { used=1; break; }; done
	[ -n "$used" ] || rm -rf "$old"
done
find "$root"/.part.* -prune -mtime +0 -exec rm -f {} \; 2>/dev/null
say at "$program"`

// uploadArgv puts a program on the VM.
func uploadArgv(place string, bin *Binary) []string {
	return []string{"sh", "-c", uploadScript, "stepmux-upload", place, bin.sum, strconv.FormatInt(bin.size, 10)}
}

// seconds returns d in whole seconds, rounded up.
func seconds(d time.Duration) string { return strconv.Itoa(int((d + time.Second - 1) / time.Second)) }

// helperArgv runs a shell for a script of n bytes that follows on stdin, by the program that the relay is:
// it must be a relay that starts it. So the two are of one version, wherever the program lies.
func helperArgv(shell []string, n int, grace time.Duration) []string {
	return slices.Concat([]string{"/proc/self/exe", "steps", "script", "--bytes", strconv.Itoa(n), "--grace", grace.String(), "--"}, shell)
}

// scriptArgv is helperArgv for a machine that has nothing of ours. mark is a word that finds what the script
// has started.
func scriptArgv(shell []string, n int, grace time.Duration, mark string) []string {
	return slices.Concat([]string{"sh", "-c", scriptWrapper, "stepmux-script", strconv.Itoa(n), tenths(grace), mark}, shell)
}

// lineArgv runs a command line by the login shell, on a machine that has nothing of ours, with what follows
// on stdin: as it is, or, if framed, in pieces with their lengths.
func lineArgv(line string, framed bool, grace time.Duration, mark string) []string {
	mode := "raw"
	if framed {
		mode = "framed"
	}
	return []string{"sh", "-c", lineWrapper, "stepmux-run", mode, tenths(grace), mark, line}
}

// tenths is how the wrappers count a grace.
func tenths(grace time.Duration) string {
	const tenth = 100 * time.Millisecond
	return strconv.FormatInt(int64((grace+tenth-1)/tenth), 10)
}

package program

import (
	"slices"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/internal/wire"
)

// Every command of this package for a VM is built here as an argument vector; mux quotes it for any login shell. No
// variable of a job is ever part of one.

// relayArgv starts the VM's relay.
func relayArgv(runner []string, tempDir string) []string {
	return slices.Concat(runner, []string{"steps", "relay", "--temp-dir", tempDir})
}

// removeArgv removes a directory.
func removeArgv(dir string) []string {
	return []string{"sh", "-c", beginMark + `exec rm -rf -- "$1"`, "stepmux-remove", dir}
}

// inputEnded is the message of askWrapper's script if its stdin ends before the command does.
const inputEnded = "stepmux-ask: standard input has ended"

// askWrapper runs a command that may hang, until the command or stdin ends. If the kill finds no process group, setsid
// has not called setsid(2) yet: then kill setsid, and the group again in case it was created in between. The reader of
// stderr may be gone, so a SIGPIPE must not come before the kill.
const askWrapper = beginMark + `command exec 3<&0 || { echo "` + inputEnded + `" >&2; exit 1; }
if command -v setsid >/dev/null; then setsid "$@" </dev/null 3<&- & p=-$!; else "$@" </dev/null 3<&- & p=$!; fi
{
	trap '' PIPE
	while read -r x; do :; done
	echo "` + inputEnded + `" >&2
	{ kill -s KILL -- "$p" || { kill -s KILL -- "${p#-}"; kill -s KILL -- "$p"; }; } 2>/dev/null
} <&3 >/dev/null 3<&- & watch=$!
wait "${p#-}"; s=$?
kill -s KILL "$watch" 2>/dev/null
` + endMark + `
exit "$s"`

// versionArgv asks a runner for its version.
func versionArgv(runner []string) []string {
	return slices.Concat([]string{"sh", "-c", askWrapper, "stepmux-ask"}, runner, []string{"--version"})
}

// begun is a line that a script of this package prints first, by beginMark: a login may run another program in place of
// the script. The line is not in the script's text, which that program may quote.
const (
	begun     = "stepmux-begun\n"
	beginMark = `printf '%s-%s\n' stepmux begun; `
)

// ended begins the last line of a script, by endMark, which has the exit status $s: another process may have the output
// of the script, and hold its end up. OpenSSH 9.2 does not always report the exit status before that.
const (
	ended   = "\nstepmux-ended "
	endMark = `printf '\n%s-%s %s\n' stepmux ended "$s"`
)

// inspectPrefix begins each line of inspectScript's output, because a login shell may print other lines.
const inspectPrefix = "stepmux-inspect: "

// inspectScript prints the VM's platform, the path of program $1 and the first bytes of its file. Then it prints the
// programs after $1 that are installed.
const inspectScript = beginMark + `say() { echo "` + inspectPrefix + `$*"; }
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
for p; do command -v "$p" >/dev/null && say other "$p"; done
s=0
` + endMark

// inspectArgv inspects a VM on which a program does not start.
func inspectArgv(program string) []string {
	return slices.Concat([]string{"sh", "-c", inspectScript, "stepmux-inspect", program}, otherRunners)
}

// uploadPrefix begins each line of uploadScript's output.
const uploadPrefix = "stepmux-upload: "

// uploadScript puts a program with SHA-256 $2 and $3 bytes on the VM, as the file $5 in the directory $4: in the
// user's cache directory if $1 is "cache", otherwise in a directory of the user below $1. The name of directory $4 is
// the beginning of the checksum of its stepmux, so that an upload does not disturb another version that runs. $6 is
// the mode of everything that is created, 700 or 755.
//
// If the file is there already, the script prints "at PATH". Otherwise it prints "send gzip" and reads a gzip file
// from stdin, or prints "send" and reads the program's bytes if the VM has no gzip. It writes pieces of 128 KiB: some
// file systems keep them whole in memory, and the program starts faster (docs/adr/0010). It checks the bytes, renames
// the file into place and prints "at PATH". The directory must be writable for the user alone and must not be a
// symbolic link, and no other user may be able to rename it. Programs that were not requested for 14 days and that no
// process runs are removed. The kernel refuses to open a program for writing while it runs (ETXTBSY). /proc would not
// show that of a relay, which hides itself. The stepmux-fetch of a relay that runs is not opened: the kernel would
// refuse to start it while the file is open.
const uploadScript = `place=$1 sum=$2 size=$3 subdir=$4 name=$5 mode=$6
umask 077
[ "$mode" = 700 ] || umask 022
export LC_ALL=C
no() { echo "$1" >&2; exit 9; }
say() { echo "` + uploadPrefix + `$*"; }
uid=$(id -u)
case $place in
cache)
	case ${XDG_CACHE_HOME:-} in
	/*) up=$XDG_CACHE_HOME ;;
	*)
		case ${HOME:-} in
		/*) [ -d "$HOME" ] || no "$HOME is no directory"; up=$HOME/.cache ;;
		*) no "there is no HOME" ;;
		esac ;;
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
chmod "$mode" "$root" || exit 9
part=$root/.part.$$
trap 's=$?; rm -f "$part"; [ "$s" = 0 ] || rmdir "${dir:-$root}" "$root" 2>/dev/null; exit "$s"' EXIT
trap 'exit 9' HUP INT TERM PIPE
{ printf '#!/bin/sh\nexit 0\n' >"$part" && chmod "$mode" "$part"; } || exit 9
"$part" || no "programs in $root cannot be executed: is it mounted noexec?"
sum() {
	s=$({ sha256sum || shasum -a 256 || openssl dgst -sha256 -r; } <"$1" 2>/dev/null)
	s=${s%% *}
	[ "${#s}" -eq 64 ] || s=$("$1" version --checksum 2>/dev/null | sed -n 's/^SHA-256: //p')
	echo "$s"
}
dir=$root/$subdir
program=$dir/$name
[ ! -L "$dir" ] || rm -f "$dir"
mkdir -p "$dir" || exit 9
if [ -f "$program" ] && [ ! -L "$program" ] && chmod "$mode" "$dir" "$program" && [ "$(sum "$program")" = "$sum" ]; then
	touch "$dir"
else
	if command -v gzip >/dev/null; then
		say send gzip
		set -- gzip -dc
	else
		say send
		set -- head -c "$size"
	fi
	"$@" | dd obs=128k of="$part" 2>&1 | sed -e '/ records /d' -e '/ copied, /d' >&2
	[ "$(wc -c <"$part")" -eq "$size" ] || no "the file did not arrive whole"
	[ "$(sum "$part")" = "$sum" ] || no "what arrived has another checksum than the file had"
	sync "$part" 2>/dev/null || sync
	{ mkdir -p "$dir" && mv -f "$part" "$program"; } || exit 9
	sync "$dir" 2>/dev/null || sync
fi
for old in "$root"/*; do
	[ "$old" != "$dir" ] && [ -n "$(find "$old" -prune -mtime +14)" ] || continue
	used=
	for p in "$old/stepmux" "$old/` + wire.FetchProgram + `"; do
		[ -n "$used" ] || [ ! -f "$p" ] || { true >>"$p"; } 2>/dev/null || used=1
	done
	[ -n "$used" ] || rm -rf "$old"
done
find "$root"/.part.* -prune -mtime +0 -exec rm -f {} \; 2>/dev/null
say at "$program"`

// uploadArgv puts a program on the VM.
func uploadArgv(at target, told facts) []string {
	return []string{
		"sh", "-c", uploadScript, "stepmux-upload", at.place, told.sum, strconv.FormatInt(told.size, 10), at.dir, at.name,
		at.mode,
	}
}

// checkedScript runs the program $2, with the arguments after it, if its file has the SHA-256 $1: a build may have
// replaced the file. It runs the file that it holds open, so a file that is put at the same path later is not run; a
// write into the open file between check and start is not detected. The program closes descriptor 3, see
// remote/commands. If the VM has no program that computes checksums, it runs unchecked.
const checkedScript = `sum=$1 program=$2
shift 2
command exec 3<"$program" || exit 127
s=$({ sha256sum || shasum -a 256 || openssl dgst -sha256 -r; } <&3 2>/dev/null)
s=${s%% *}
[ "${#s}" -ne 64 ] || [ "$s" = "$sum" ] || { echo "$program has changed since stepmux put it there" >&2; exit 9; }
exec ` + wire.OpenProgram + ` "$@"`

// checkedName is the $0 of checkedScript's shell.
const checkedName = "stepmux-checked"

// checkedArgv runs an uploaded program.
func checkedArgv(sum, command string) []string {
	return []string{"sh", "-c", checkedScript, checkedName, sum, command}
}

// shown returns a runner command for people: without the check of checkedArgv.
func shown(runner []string) []string {
	if i := slices.Index(runner, checkedName); i >= 0 {
		return runner[i+2:]
	}
	return runner
}

// Wrapped returns the command line that runs argv, words without blanks, by the entrypoint of a container. A shell with
// -c takes one argument for a script, and drops the others.
func Wrapped(entrypoint, argv []string) []string {
	if n := len(entrypoint); n > 1 && entrypoint[n-1] == "-c" {
		argv = []string{"exec " + strings.Join(argv, " ")}
	}
	return slices.Concat(entrypoint, argv)
}

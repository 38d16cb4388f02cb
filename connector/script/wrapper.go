package script

import (
	"slices"
	"strconv"
	"time"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// The wrappers replace our program on a machine without it. They are for a POSIX sh. SSH cannot end a process
// together with its channel, so they make stdin a leash: when it ends, the job is stopped. The job gets a session and
// a process group of its own, and a word in its environment that finds processes that leave the group. The wrappers
// report the job's end, or why it could not run, by a line that begins with a key; the key is the first line of stdin
// (wire.End).

// wrapperStart is the common beginning. fail reports why the job cannot run; marked prints the pids of the processes
// with the word, and hunt kills them; await waits for the job and for the process that stops it, and kills the rest.
// The line begun says that the login runs the wrapper and no other program: nothing more is sent before it arrives.
// An environment is split into lines before grep, because BusyBox's grep stops at a NUL byte.
const wrapperStart = `say() {
  printf '\036stepmux-end %s %s\n' "$key" "$*"
  printf '\036stepmux-end %s %s\n' "$key" "$*" >&2
}
fail() { set -f; stage=$1; shift; set -- $*; say fail "$stage" "$@"; exit 1; }
need() { for tool; do command -v "$tool" >/dev/null || fail tool "$tool is not installed"; done; }
marked() {
  head -c 99999999 /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n' |
  LC_ALL=C grep -F -e '==> /proc/' -e "STEPMUX_SCRIPT=$mark" | while read -r word file rest; do
    case $word in
    '==>') p=${file#/proc/} ;;
    "STEPMUX_SCRIPT=$mark") echo "${p%/environ}" ;;
    esac
  done
}
hunt() {
  for again in 1 2 3 4 5; do
    found=
    for p in $(marked); do kill -s KILL "$p" 2>/dev/null && found=1; done
    [ "$found" ] || return 0
  done
}
sweep() { kill -s KILL -- "-$job" 2>/dev/null; hunt; }
await() {
  while :; do wait "$job" 2>/dev/null; s=$?; kill -s 0 "$job" 2>/dev/null || break; done
  if [ "$stopping" ]; then # the signal may have ended the wait
    wait "$job" 2>/dev/null; t=$?; [ "$t" -lt 0 ] || [ "$t" -eq 127 ] || s=$t # bash may say -1
    [ "$s" -ne 138 ] || s=143
    while kill -s 0 "$leash" 2>/dev/null; do wait "$leash" 2>/dev/null; done
  fi
  sweep
}
read -r key || exit 1
printf '\036stepmux-end %s begun\n' "$key"
stopping= leash=
`

// stopGroup sends SIGTERM to the group $1, once process $1 has created it, and SIGKILL if the group is not gone after
// $2 tenths of a second.
const stopGroup = `until kill -s TERM -- "-$1"; do kill -s 0 "$1" || exit 0; sleep 0.1 || sleep 1; done
sleep 0.02
i=0; while [ "$i" -lt "$2" ] && kill -s 0 -- "-$1"; do
  if sleep 0.1; then i=$((i+1)); else sleep 1; i=$((i+10)); fi
done
kill -s KILL -- "-$1"`

// scriptWrapper reads $1 bytes of script and passes them to the shell $4... as a file. A script that did not arrive
// completely is not run. From then on the end of stdin stops the shell, with a grace of $2 tenths of a second. If the
// shell exits with 126 or 127 and has read nothing of its script, it could not be started.
const scriptWrapper = `n=$1 grace=$2 mark=$3; shift 3
` + wrapperStart + `need mktemp head wc setsid sleep grep tr rm cat
command -v -- "$1" >/dev/null || fail shell "$1 is not installed, or not in the PATH of the login"
f=$(mktemp "${TMPDIR:-/tmp}/stepmux-script.XXXXXX" 2>&1) || fail tmp "$f"
trap 'rm -f "$f" 2>/dev/null' EXIT; trap 'exit 1' TERM INT HUP PIPE
e=$(head -c "$n" 2>&1 >"$f") || fail tmp "$e"
e=$(wc -c <"$f"); [ "$e" -eq "$n" ] || fail truncated "$e of $n bytes arrived"
exec 3<&0 4<"$f"; rm -f "$f" 2>/dev/null && trap - EXIT # or in the end
trap stopping=1 USR1; trap : TERM INT HUP PIPE
STEPMUX_SCRIPT=$mark setsid -- "$@" <&4 3<&- 4<&- & job=$!
setsid sh -c 'cat >/dev/null; kill -s USR1 "$3"
` + stopGroup + `' leash "$job" "$grace" "$$" <&3 >/dev/null 2>&1 3<&- 4<&- & leash=$!
exec 3<&- </dev/null
await
kill -s KILL -- "-$leash" 2>/dev/null
case $s in 126|127)
  [ "$n" -gt 0 ] && [ "$(cat <&4 | wc -c)" -eq "$n" ] &&
    fail shell "$* ended with exit status $s and read nothing of the script"
esac
say exit "$s"`

// lineWrapper runs the command line $4 by the login shell. The command's stdin is the wrapper's or, if $1 is
// "framed", the contents of pieces, each after a line with its length, up to a piece of length 0. The end of the
// wrapper's stdin stops the command. So does a manager that no longer accepts output, because the end of stdin is
// hidden behind input that a command does not read. A pipe without a file is made by opening its other end through
// /proc, as Linux allows.
const lineWrapper = `mode=$1 grace=$2 mark=$3 line=$4
` + wrapperStart + `need cat setsid sleep head grep tr
if [ "$mode" = framed ]; then
  dd bs=1 count=0 iflag=fullblock </dev/null >/dev/null 2>&1 || fail tool "there is no dd that has iflag=fullblock"
fi
stop() {
  stopping=1
  [ -z "$leash" ] || return 0
  setsid sh -c '` + stopGroup + `' leash "$job" "$grace" </dev/null >/dev/null 2>&1 & leash=$!
}
end() { kill -s USR1 "$self"; exec >/dev/null 2>&1; while kill -s USR1 "$self"; do sleep 1; done; hunt; }
feed() {
  if [ "$mode" = framed ]; then
    while read -r n && [ "$n" -gt 0 ]; do dd bs="$n" count=1 iflag=fullblock; done
    [ "$n" = 0 ] && exec >/dev/null
  fi
  cat || cat >/dev/null
  end
}
watch() {
  trap '' PIPE
  while sleep 2 2>/dev/null && kill -s 0 "$self"; do printf '\036stepmux-end %s alive\n' "$key" >&2 || break; done
  end
}
exec 3<&0
: | {
read -r self rest </proc/self/stat
exec 4<&0 5>/proc/self/fd/0 </dev/null
trap stop USR1; trap : TERM INT HUP PIPE
STEPMUX_SCRIPT=$mark setsid -- "${SHELL:-/bin/sh}" -c "$line" <&4 3<&- 4<&- 5>&- & job=$!
{ watch; } >/dev/null 3<&- 4<&- 5>&- & watch=$!
{ feed; } <&3 >&5 2>/dev/null 3<&- 4<&- 5>&- & # the earliest caller of stop
exec 3<&- 4<&- 5>&-
await
kill -s KILL "$watch"
say exit "$s"
}`

// Every command of this package for a VM is built here as an argument vector; mux quotes it for a login shell. No
// variable of a job is ever part of one.

// helperArgv runs the shell of a script that follows on stdin, with the relay's own program: only a relay may start
// it. So both have the same version, wherever the program is installed.
func helperArgv(s Script) []string {
	return slices.Concat([]string{
		"/proc/self/exe", "steps", "script", "--bytes", strconv.Itoa(len(s.Text)), "--grace", s.Grace.String(),
	}, s.Args(vmconfig.TempDirFlag), []string{"--"}, s.Shell)
}

// scriptArgv is helperArgv for a machine without a stepmux. mark is the word that finds the script's processes.
func scriptArgv(shell []string, n int, grace time.Duration, mark string) []string {
	size := strconv.Itoa(n)
	return slices.Concat([]string{"sh", "-c", scriptWrapper, "stepmux-script", size, tenths(grace), mark}, shell)
}

// lineArgv runs a command line by the login shell, on a machine without a stepmux. stdin follows, raw or, if framed,
// in pieces with their lengths.
func lineArgv(line string, framed bool, grace time.Duration, mark string) []string {
	mode := "raw"
	if framed {
		mode = "framed"
	}
	return []string{"sh", "-c", lineWrapper, "stepmux-run", mode, tenths(grace), mark, line}
}

// tenths returns a grace in tenths of a second, as the wrappers expect it.
func tenths(grace time.Duration) string {
	const tenth = 100 * time.Millisecond
	return strconv.FormatInt(int64((grace+tenth-1)/tenth), 10)
}

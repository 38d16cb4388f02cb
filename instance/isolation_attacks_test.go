package instance_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// outcome is how an attack ends.
type outcome int

const (
	closed outcome = iota // it fails
	open                  // it succeeds
	stands                // it is not tried
)

// isolationAttack is a job that harms the victim, or a file from which later builds start. Its environment has PIDS
// (the processes of the victim), SHELL_PID, SERVE_PID, the directory BASE of the builds, and its OWN directory.
type isolationAttack struct {
	name  string
	text  string
	steps string // instead of text
	// has reports whether the attack has succeeded. If nil, it has if the job's output, trace or artifacts have LOOT.
	has func(*scene) bool
	// shares says that has looks at a file of this attack alone. Without isolation it may share its victim with attacks
	// that only look.
	shares bool
	// traced and packed ask for a trace and for artifacts.
	traced, packed bool
	// with is the outcome at the level processes, without that at off.
	with, without outcome
}

func (a *isolationAttack) succeeded(s *scene, out string) bool {
	if a.has != nil {
		return a.has(s)
	}
	return strings.Contains(out, loot)
}

var isolationAttacks = append([]isolationAttack{
	{name: "attach a debugger to the shell", text: `$TOOL ptrace $SHELL_PID`, without: open},
	{name: "attach a debugger to all it can name", text: `for p in $(ls /proc | grep '^[0-9]'); do
		[ -d /proc/$p ] && ! grep -q "$ID" /proc/$p/environ 2>/dev/null && $TOOL ptrace $p; done`, without: stands},
	{name: "read memory with process_vm_readv", text: `$TOOL vm-read $SHELL_PID`, without: open},
	{name: "open /proc/PID/mem of the shell", text: `(exec 3</proc/$SHELL_PID/mem) && echo LOOT`, without: open},
	{name: "open /proc/PID/mem of serve", text: `(exec 3</proc/$SERVE_PID/mem) && echo LOOT`},
	{name: "attach a debugger to serve", text: `$TOOL ptrace $SERVE_PID`},
	{
		name: "read the environments of all processes", without: open,
		text: `cat /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n' | grep -q '^VICTIM_SECRET=' && echo LOOT`,
	},
	{name: "open the files of the shell", text: `ls -l /proc/$SHELL_PID/fd/ && echo LOOT`, without: open},
	{name: "see the neighbour's processes", text: `tr '\0' ' ' </proc/$SHELL_PID/cmdline && echo LOOT`, without: open},
	{name: "walk through /proc/PID/root", text: `ls /proc/$SHELL_PID/root/$BASE/victim && echo LOOT`, without: open},
	{name: "take a descriptor of the shell", text: `$TOOL pidfd $SHELL_PID`, without: stands},

	{name: "read the neighbour's script", text: `cat $BASE/victim/jobs/*/script && echo LOOT`, without: open},
	{name: "list the builds", text: `ls $BASE | grep victim && echo LOOT`, without: open},
	{
		name: "rename the neighbour's directory", text: `mv $BASE/victim $BASE/gone`, without: open,
		has: func(s *scene) bool { return !exists(filepath.Dir(s.socket("victim"))) },
	},
	{name: "connect to the neighbour's socket", text: `$TOOL dial $BASE/victim/step-runner.sock`, without: open},
	{
		name: "use the neighbour's ssh-agent", without: open,
		text: `SSH_AUTH_SOCK=/tmp/$MARK.agent ssh-add -l; [ $? -le 1 ] && echo LOOT`,
	},
	{name: "read a file in /tmp", text: `cat /tmp/$MARK && echo LOOT`, without: open},
	{name: "read a file in /var/tmp", text: `cat /var/tmp/$MARK && echo LOOT`, without: open},
	{name: "read a file in /dev/shm", text: `cat /dev/shm/$MARK && echo LOOT`, without: open},
	{name: "open the terminal of a login", text: `(: <$TERMINAL) && echo LOOT`, without: open},
	{name: "see System V shared memory", text: `ipcs -m -i $SHM | grep cuid && echo LOOT`, without: open},
	{name: "open a POSIX message queue", text: `$TOOL queue-open $MARK`, without: stands}, // some kernels lack them
	{name: "find a key in the keyrings", text: `$TOOL key-find $MARK`, without: stands},   // some sandboxes forbid them
	{
		name: "write a file of cgroups", without: stands,
		text: `find /sys/fs/cgroup -type f -writable 2>/dev/null | grep -q . && echo LOOT`,
	},

	{
		name: "stop all it can name", without: stands, // see TestWhatAJobStopsIsEndedWithItsBuild
		text: `kill -STOP $PIDS; for p in $PIDS; do kill -STOP $p; done; true`,
		has:  func(s *scene) bool { return anyOf(s.pids, func(pid int) bool { return stateOf(pid) == "T" }) },
	},
	{
		name: "kill all it can name", text: `kill -KILL $PIDS; for p in $PIDS; do kill -KILL $p; done; true`, without: open,
		has: func(s *scene) bool { return anyOf(s.pids, isGone) },
	},
	{
		name: "kill every process of the user", without: stands, // this test is one of them
		text: `trap '' TERM HUP INT; kill -TERM -1; kill -9 -1; true`,
		has:  func(s *scene) bool { return anyOf(s.pids, isGone) },
	},
	{
		name: "signal the first process", without: stands, text: `for s in STOP KILL TERM INT QUIT HUP ABRT SEGV ALRM; do
		kill -$s 1; done; true`,
		has: func(s *scene) bool { return anyOf(s.pids, isGone) },
	},
	{name: "outlive the build in another session", has: leaves("setsid"), text: `
		setsid sh -c 'trap "" TERM HUP INT; while :; do sleep 7; done' $MARK.setsid >/dev/null 2>&1 &
		sleep 0.1`},
	{name: "outlive the build without a marker", has: leaves("daemon"), text: `$TOOL daemon $MARK.daemon`},
	{name: "outlive the build and kill what ends it", has: leaves("orphan"), without: stands, text: `
		$TOOL daemon $MARK.orphan; all= p=$$
		while p=$(awk '{print $4}' /proc/$p/stat) && [ $p -gt 1 ] && grep -q stepmux /proc/$p/cmdline; do all="$p $all"; done
		[ -z "$all" ] || { kill -STOP $all; kill -KILL $all; }; true`},
	{name: "fork faster than it is killed", has: leaves("storm"), text: `
		for i in 1 2 3 4; do
			sh -c 'trap "" TERM; while :; do (sh -c "sleep 3; :" $0 & ); sleep 0.05; done' $MARK.storm >/dev/null 2>&1 &
		done; sleep 0.3`},

	{
		name: "mount or unmount in the own namespace", without: stands,
		text: `umount -l /tmp || umount -l $HOME/.bashrc || mount -t tmpfs t /mnt && echo LOOT`,
	},
	{name: "unmount in a namespace below", without: stands, text: nested(`
		for m in /tmp /proc /var/tmp $HOME/.bashrc $HOME/.ssh; do umount $m && echo LOOT; umount -l $m && echo LOOT; done`)},
	{name: "make a login file writable in a namespace below", without: stands, text: nested(`
		mount -o remount,bind,rw $HOME/.bashrc && echo LOOT; echo evil >>$HOME/.bashrc && echo LOOT`)},
	{name: "bind the home elsewhere", without: stands, text: nested(`
		mkdir -p /tmp/m; mount --bind $HOME /tmp/m && echo evil >>/tmp/m/.bashrc && echo LOOT
		mount --rbind $HOME /tmp/m && echo evil >>/tmp/m/.bashrc && echo LOOT
		mount --rbind / /tmp/m && umount /tmp/m/tmp && echo LOOT`)},
	{name: "look below the mounts by overlay", without: stands, text: nested(`
		mkdir -p /tmp/m /tmp/u /tmp/w; mount -t tmpfs t /tmp/w && mkdir /tmp/w/u /tmp/w/w &&
		mount -t overlay -o lowerdir=/,upperdir=/tmp/w/u,workdir=/tmp/w/w,userxattr o /tmp/m &&
		ls /tmp/m/$BASE/victim && echo LOOT`)},
	{name: "pivot to another root", without: stands, text: nested(`
		mkdir -p /tmp/m; mount --rbind / /tmp/m && mkdir -p /tmp/m/tmp/old && pivot_root /tmp/m /tmp/m/tmp/old
		ls $BASE/victim /tmp/old/$BASE/victim && echo LOOT`)},
	{name: "mount /proc anew", without: stands, text: `
		unshare -Urpmf --mount-proc sh -c '
			cat /proc/[0-9]*/environ | tr "\0" "\n" | grep -q ^VICTIM_SECRET && echo LOOT'; true`},
	{name: "enter the namespaces of the first process", without: stands, text: `
		nsenter -t 1 -U -m true && echo LOOT; ls /proc/1/root/ && echo LOOT; ls /proc/1/cwd/ && echo LOOT; true`},
	{name: "look into the first process", without: stands, text: `
		ls /proc/1/fd/ && echo LOOT; (exec 3</proc/1/mem) && echo LOOT; $TOOL ptrace 1; $TOOL pidfd 1; $TOOL vm-read 1`},
	{name: "look into the first process from a namespace below", without: stands, text: nested(`
		ls /proc/1/fd/ && echo LOOT; (exec 3</proc/1/mem) && echo LOOT; $TOOL ptrace 1; $TOOL pidfd 1`)},

	{
		name: "replace the program", text: `rm -f $PROGRAM; printf '#!/bin/sh\nexit 0\n' >$PROGRAM; echo x >>$PROGRAM; true`,
		without: open, has: changes(".cache/stepmux/0123/stepmux"),
	},
	{
		name: "rename the program's directory", without: open, has: func(s *scene) bool { return !exists(s.runner[0]) },
		text: `mv ~/.cache/stepmux/0123 ~/.cache/x; mv ~/.cache/stepmux ~/.cache/x; mv ~/.cache ~/x; true`,
	},
	{
		name: "put a program beside it", text: `mkdir -p ~/.cache/stepmux/4567; echo evil >~/.cache/stepmux/4567/stepmux`,
		without: open, has: changes(".cache/stepmux/4567/stepmux"),
	},
	{
		name: "say that the user can become root", text: `echo evil >~/.cache/stepmux/sudo`, without: open,
		has: changes(".cache/stepmux/sudo"),
	},
	{
		name: "change a fetched step", text: `mkdir -p ~/.cache/stepmux-steps; echo evil >~/.cache/stepmux-steps/step`,
		without: open, has: changes(".cache/stepmux-steps/step"),
	},
	{
		name: "have serve write to the neighbour's directory", without: stands, steps: deputy(`$VICTIM_JOB`),
		has: func(s *scene) bool { return !isText(filepath.Join(s.env["VICTIM_JOB"], "script"), s.script) },
	},
	{name: "have serve write to ~/.ssh", without: stands, steps: deputy(`$HOME/.ssh`), has: func(s *scene) bool {
		return !isText(filepath.Join(s.home, ".ssh/script"), sshScript)
	}},
	{name: "take a step from the neighbour's files", without: open, steps: `run:
  - {name: link, script: 'ln -s "$VICTIM_WORK/step" theirs'}
  - {name: next, step: ./theirs}
`},
	{name: "take an action from the neighbour's files", without: open, steps: `run:
  - {name: link, script: 'ln -s "$VICTIM_WORK/action" theirs'}
  - {name: next, action: ./theirs}
`},
	{name: "take an archive from the neighbour's files", without: open, steps: `run:
  - {name: link, script: 'ln -s "$VICTIM_WORK/step.zip" theirs.zip'}
  - {name: next, step: zip+./theirs.zip}
`},
	{name: "take an archive from the neighbour's files by a URL with another :// in it", without: open, steps: `run:
  - {name: link, script: 'mkdir a:; ln -s "$VICTIM_WORK/step.zip" a:/theirs.zip'}
  - {name: next, step: "zip+file://${{ work_dir }}/a://theirs.zip"}
`},
	{
		name: "put a link in the place of the trace", traced: true,
		text: `for f in $(find $OWN/jobs -name '*trace*'); do rm $f; ln -s $VICTIM_WORK/loot $f; done`,
	},
	{
		name: "send the neighbour's files as artifacts", packed: true, without: open,
		text: `mine=$PWD; cd /; mv $mine $mine.gone; ln -s $VICTIM_WORK $mine`,
	},
	{name: "have a hidden directory shown by a link in the place of the work directory", without: open, steps: `run:
  - {name: link, script: 'mine=$PWD; cd /; rmdir $mine; ln -s $HIDDEN $mine'}
  - {name: next, script: cat loot}
`},
	{name: "hash the neighbour's files", without: open, steps: `run:
  - name: job
    step: builtin://github/job
    inputs:
      job: test
      workflow: |
        on: push
        jobs:
          test:
            steps:
              - run: work=$PWD; cd /; mv $work $work.gone; ln -s "$VICTIM_WORK" $work
              - run: '[ -z "\${{ hashFiles(''secret'') }}" ] || echo LOOT'
                working-directory: /
`},
	{
		name: "replace a login file that is a link", without: open, has: changes(".bash_aliases"),
		text: `rm -f ~/.bash_aliases; echo evil >~/.bash_aliases; echo evil >~/new; mv -f ~/new ~/.bash_aliases`,
	},
	{
		name: "change the file behind such a link", without: open, has: changes(".bash_aliases"),
		text: `echo evil >>~/dotfiles/aliases; rm -f ~/dotfiles/aliases; mv ~/dotfiles ~/moved; mkdir -p ~/dotfiles
			echo evil >~/dotfiles/aliases`,
	},
	{
		name: "replace a directory of login files that is a link", without: open, has: changes(".config/fish/config.fish"),
		text: `echo evil >~/.config/fish/config.fish; mv ~/.config/fish ~/moved; mkdir -p ~/.config/fish
			echo evil >~/.config/fish/config.fish; mv ~/.config ~/gone; mkdir -p ~/.config/fish
			echo evil >~/.config/fish/config.fish`,
	},

	// No level of isolation holds these: docs/security.md says so.
	{
		name: "change the configuration of git", text: `echo evil >~/.gitconfig`, with: open, without: open,
		has: changes(".gitconfig"),
	},
}, loginAttacks()...)

// loginAttacks are attacks on the files from which a login starts: written, replaced, and moved with their directories.
func loginAttacks() (all []isolationAttack) {
	for _, name := range []string{
		".bashrc", ".bashrc.d/evil", ".profile", ".bash_profile", ".bash_login", ".bash_logout", ".bash_completion",
		".pam_environment", ".ssh/authorized_keys", ".ssh/rc", ".ssh/environment", ".ssh/config",
		".config/systemd/user/evil.service", ".local/share/systemd/user/evil.service", ".config/environment.d/evil.conf",
		".config/bash_completion", ".alias", ".i18n", ".config/user-tmpfiles.d/evil.conf",
		".local/share/user-tmpfiles.d/evil.conf", ".config/containers/systemd/evil.container", ".forward", ".inputrc",
		".local/share/bash-completion/completions/evil", ".config/locale.conf",
	} {
		text := `echo evil >>~/F; rm -f ~/F; echo evil >~/F; echo evil >~/new; mv -f ~/new ~/F`
		if dir := filepath.Dir(name); dir != "." {
			top, _, _ := strings.Cut(name, "/")
			text += `; mv ~/` + top + ` ~/` + top + `.old; mkdir -p ~/` + dir + `; echo evil >~/F`
		}
		all = append(all, isolationAttack{
			name: "write ~/" + name, text: strings.ReplaceAll(text, "F", name), without: open, has: changes(name),
			shares: true,
		})
	}
	return all
}

// nested is a script that root of a user namespace below runs in a mount namespace of its own. It always succeeds.
func nested(text string) string {
	return "unshare -Urm sh -c '" + text + "'; true"
}

// deputy is a job whose first step puts a link in the place of the job's directory, so that serve writes the next one's
// files there.
func deputy(target string) string {
	return `run:
  - name: link
    script: cd /; mkdir -p ` + target + `; mine=$(echo $OWN/jobs/*); mv $mine $OWN/moved; ln -s ` + target + ` $mine
  - name: next
    script: 'true; echo ${{output_file}}'
`
}

// changes tells whether a file of the home has the attacker's text.
func changes(name string) func(*scene) bool {
	return func(s *scene) bool {
		text, err := os.ReadFile(filepath.Join(s.home, name))
		if strings.HasSuffix(name, "/0123/stepmux") {
			return err != nil || len(text) < 1<<20 || strings.HasSuffix(string(text), "x\n")
		}
		return strings.Contains(string(text), "evil")
	}
}

// leaves tells whether a process with the name in its command line outlives the build.
func leaves(name string) func(*scene) bool {
	return func(s *scene) bool {
		return !isSoon(2*time.Second, func() bool { return len(processesNamed(s.env["MARK"]+"."+name)) == 0 })
	}
}

// isSoon waits until is returns true, which nothing announces, and reports whether it does so in time.
func isSoon(bound time.Duration, is func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(bound); time.Now().Before(end); <-tick.C {
		if is() {
			return true
		}
	}
	return is()
}

func processesNamed(text string) (found []int) {
	for pid, line := range processes() {
		if strings.Contains(line, text) {
			found = append(found, pid)
		}
	}
	return found
}

// sshScript is the text of a file that a job must not change.
const sshScript = "a script of the user"

func isText(path, text string) bool {
	is, err := os.ReadFile(path)
	return err == nil && string(is) == text
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func isGone(pid int) bool { return stateOf(pid) == "" || stateOf(pid) == "Z" }

func anyOf(pids []int, is func(int) bool) bool {
	for _, pid := range pids {
		if is(pid) {
			return true
		}
	}
	return false
}

func killNamed(t testing.TB, text string) {
	t.Helper()
	for _, pid := range processesNamed(text) {
		if process, err := os.FindProcess(pid); err == nil {
			_ = process.Kill() // it may be gone
		}
	}
}

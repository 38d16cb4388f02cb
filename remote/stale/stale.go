// Package stale ends the processes that dead builds have left on a VM, and removes their files.
//
// [Sweep] continues stopped processes of the VM's end, so that they notice that their manager has gone. It kills the
// processes of dead servers (package proc finds them), and removes the directories of those servers (package socketdir
// does). It never touches a living server. A relay calls it at its start and after each of its processes that was
// killed. A serve calls it at its start, unless a relay started it.
package stale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/socketdir"
)

// Sweep ends the processes of dead builds on this machine, and removes their directories below tmp. It waits for both;
// the wait for processes is bounded, and ctx ends either. Its errors name the processes and directories that are left.
func Sweep(ctx context.Context, tmp string) (errs []error) {
	if err := EndProcesses(ctx, tmp); err != nil {
		errs = append(errs, err)
	}
	return append(errs, socketdir.Sweep(ctx, tmp)...)
}

// EndProcesses is the part of Sweep for processes and their cgroups. It returns when ctx ends or after some seconds.
func EndProcesses(ctx context.Context, tmp string) (err error) {
	Continue(tmp)
	if left := proc.KillOrphans(ctx); len(left) > 0 && ctx.Err() == nil {
		err = fmt.Errorf("processes of dead step runners could not be killed: %s", Names(left))
	}
	return errors.Join(err, proc.RemoveOrphanGroups(ctx))
}

// maxNames bounds the processes that a message names.
const maxNames = 10

// Names lists processes for a message.
func Names(left []proc.Left) string {
	var text []string
	for _, l := range left[:min(len(left), maxNames)] {
		text = append(text, l.String())
	}
	if more := len(left) - len(text); more > 0 {
		text = append(text, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(text, ", ")
}

// Continue sends SIGCONT to the stopped serves, proxies and relays of tmp. A stopped process does not notice that its
// manager has gone. If its manager lives, it goes on with its work.
func Continue(tmp string) {
	all, _ := proc.List() // without /proc the list is empty
	for _, p := range all {
		if p.Stopped && isPart(p, tmp) {
			_ = unix.Kill(p.PID, unix.SIGCONT) // harmless if another process, which runs, has the number now
		}
	}
}

// StartedByRelay reports whether this program's parent is a relay. A relay sweeps for all the processes that it starts.
func StartedByRelay() bool {
	args := proc.Arguments(os.Getppid())
	return len(args) > 2 && slices.Equal(args[1:3], []string{"steps", "relay"})
}

// isPart reports whether p is a command of the VM's end that serves builds of tmp.
func isPart(p proc.Info, tmp string) bool {
	args := proc.Arguments(p.PID)
	if len(args) < 3 || args[1] != "steps" {
		return false
	}
	switch args[2] {
	case "relay":
		return valueOf(args, "--temp-dir", "/tmp") == tmp
	case "serve", "proxy":
	default:
		return false
	}
	socket := valueOf(args, "--socket", "")
	if socket != pipe.SocketOnStdin {
		return filepath.Dir(filepath.Dir(filepath.Dir(socket))) == tmp
	}
	// It was prestarted. Its relay's command line has tmp. Without a relay it is always continued.
	parent := proc.Arguments(p.Parent)
	if len(parent) < 3 || parent[1] != "steps" || parent[2] != "relay" {
		return true
	}
	return valueOf(parent, "--temp-dir", "/tmp") == tmp
}

// valueOf returns the value of a flag.
func valueOf(args []string, flag, otherwise string) string {
	for i, arg := range args {
		if value, ok := strings.CutPrefix(arg, flag+"="); ok {
			return value
		}
		if arg == flag && i+1 < len(args) {
			return args[i+1]
		}
	}
	return otherwise
}

package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/builduser"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/socketdir"
	"github.com/stepmux/stepmux/remote/stale"
)

const (
	// endGrace is how long End waits for a serve to end its jobs: their default grace and a second more.
	endGrace = defaultGrace + time.Second
	// endKill bounds the wait until a killed serve is gone, and until its inits have removed its directory.
	endKill = 2 * time.Second
)

// End ends the build whose socket is path. A manager calls it if the build's serve did not end with its leash.
//
// End continues stopped processes, sends SIGTERM to the serve that listens on the socket, SIGKILL after 6 s, and kills
// the processes of dead serves. If root calls it for a build of another user, it does all that as that user. At the end
// it writes the remains of the build to out, as a list of texts in one line of JSON. It takes 20 s at most.
func End(ctx context.Context, out io.Writer, path string) error {
	if err := wire.CheckSocketPath(path); err != nil {
		return fmt.Errorf("end: %w", err)
	}
	dir := filepath.Dir(path)
	if err := builduser.BecomeOwner(dir); err != nil {
		return fmt.Errorf("end: %w", err)
	}
	tmp := filepath.Dir(filepath.Dir(dir))
	if err := socketdir.CheckBuild(tmp, path); err != nil {
		return fmt.Errorf("end: %w", err)
	}
	serve := findServe(ctx, path) // if the serve goes on, it may close its socket at once
	stale.Continue(tmp)
	left, removal := []string{}, endGrace // no serve listens: it may be ending
	if serve != nil {
		removal = endKill
		if !endServe(ctx, serve) {
			left = append(left, fmt.Sprintf("process %d (the step runner)", serve.PID))
		}
	}
	for _, p := range proc.KillOrphans(ctx) {
		left = append(left, p.String())
	}
	if !awaitRemoval(ctx, tmp, dir, removal) {
		left = append(left, "directory "+dir)
	}
	if err := json.NewEncoder(out).Encode(left); err != nil {
		return fmt.Errorf("end: write what is left: %w", oserr.Bare(err))
	}
	return nil
}

// findServe returns the serve that listens on the socket, or nil.
func findServe(ctx context.Context, path string) *proc.Info {
	pid, err := socketdir.Listener(ctx, path)
	if err != nil || pid <= 1 {
		return nil
	}
	serve, err := proc.ReadInfo(pid)
	if args := proc.Arguments(pid); err != nil || len(args) < 3 || !slices.Equal(args[1:3], []string{"steps", "serve"}) {
		return nil // a job has put its own socket there
	}
	return &serve
}

// endServe ends a serve, and reports whether it is gone.
func endServe(ctx context.Context, serve *proc.Info) bool {
	for _, signal := range []struct {
		send unix.Signal
		wait time.Duration
	}{{unix.SIGTERM, endGrace}, {unix.SIGKILL, endKill}} {
		if serve.Gone() {
			return true
		}
		_ = unix.Kill(serve.PID, signal.send) // an error means that it has ended
		_ = unix.Kill(serve.PID, unix.SIGCONT)
		if await(ctx, signal.wait, serve.Gone) {
			return true
		}
	}
	return false
}

// awaitRemoval waits until the directory dir of a build is gone, and reports whether that happened within the time
// most. A serve or its inits may be removing dir. If there are none, awaitRemoval removes it.
func awaitRemoval(ctx context.Context, tmp, dir string, most time.Duration) bool {
	gone := func() bool {
		_, err := os.Lstat(dir)
		return errors.Is(err, fs.ErrNotExist)
	}
	socketdir.Sweep(ctx, tmp)
	if await(ctx, most, gone) {
		return true
	}
	socketdir.Sweep(ctx, tmp) // the holder of its lock may have ended
	return gone()
}

// await polls is until it returns true, and reports whether it did so within the time most.
func await(ctx context.Context, most time.Duration, is func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return pause.Until(ctx, func() (bool, error) { return is(), nil }) == nil
}

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

	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/oserr"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/socketdir"
	"github.com/stepmux/stepmux/remote/stale"
)

const (
	// endGrace is how long End lets a serve end its jobs: their default grace and a second.
	endGrace = defaultGrace + time.Second
	// endKill bounds the wait for a serve that was killed, and for its shims to remove the directory.
	endKill = 2 * time.Second
)

// End ends the build whose socket is path, for a manager whose serve did not end with its leash. It continues what was
// stopped, sends SIGTERM to the serve that listens on the socket, SIGKILL after 6 s, and kills the processes of dead
// serves. Then it writes to out what is left, as a line of JSON ([wire.Leftovers]). It takes 15 s at most.
func End(ctx context.Context, out io.Writer, path string) error {
	if err := wire.CheckSocketPath(path); err != nil {
		return fmt.Errorf("end: %w", err)
	}
	dir := filepath.Dir(path)
	tmp := filepath.Dir(filepath.Dir(dir))
	if err := socketdir.CheckBuild(tmp, path); err != nil {
		return fmt.Errorf("end: %w", err)
	}
	stale.Continue(tmp)
	report := wire.Leftovers{Left: []string{}}
	if serve := endServe(ctx, path); serve != nil {
		report.Left = append(report.Left, fmt.Sprintf("process %d (the step runner)", serve.PID))
	}
	for _, p := range proc.KillOrphans(ctx) {
		report.Left = append(report.Left, p.String())
	}
	if !awaitRemoval(ctx, tmp, dir) {
		report.Left = append(report.Left, "directory "+dir)
	}
	if err := json.NewEncoder(out).Encode(report); err != nil {
		return fmt.Errorf("end: write what is left: %w", oserr.Bare(err))
	}
	return nil
}

// endServe ends the serve that listens on the socket, and returns it if it lives on. A process that is no serve is not
// touched.
func endServe(ctx context.Context, path string) *proc.Info {
	pid, err := socketdir.Listener(ctx, path)
	if err != nil || pid <= 1 || pid == os.Getpid() {
		return nil // nobody listens
	}
	serve, err := proc.ReadInfo(pid)
	if args := proc.Arguments(pid); err != nil || len(args) < 3 || !slices.Equal(args[1:3], []string{"steps", "serve"}) {
		return nil
	}
	for _, signal := range []struct {
		send unix.Signal
		wait time.Duration
	}{{unix.SIGTERM, endGrace}, {unix.SIGKILL, endKill}} {
		if serve.Gone() {
			return nil
		}
		_ = unix.Kill(pid, signal.send) // an error means that it has ended
		_ = unix.Kill(pid, unix.SIGCONT)
		if await(ctx, signal.wait, serve.Gone) {
			return nil
		}
	}
	return &serve
}

// awaitRemoval reports whether the directory dir of a build is gone. Its serve or its shims may be removing it; if there
// are none, it is removed here.
func awaitRemoval(ctx context.Context, tmp, dir string) bool {
	socketdir.Sweep(ctx, tmp)
	return await(ctx, endKill, func() bool {
		_, err := os.Lstat(dir)
		return errors.Is(err, fs.ErrNotExist)
	})
}

// await polls until is returns true, for at most so long, and reports whether it did.
func await(ctx context.Context, most time.Duration, is func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return filelock.Poll(ctx, func() (bool, error) { return is(), nil }) == nil
}

package project

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/tail"
)

// lateOutput bounds the wait for the output of a program that has ended: other processes may hold it open.
const lateOutput = 10 * time.Second

// run runs the program that packs and unpacks in the job's directory, and returns the last lines of its standard error.
// The program is killed when ctx or this process ends.
func (p *Project) run(ctx context.Context, in, out *os.File, args ...string) (note string, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	argv := append(append([]string(nil), p.cfg.Command...), args...)
	process, err := os.StartProcess(argv[0], argv, &os.ProcAttr{
		Dir: p.dir(), Files: []*os.File{in, out, w}, Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	_ = w.Close() // the program has its own
	if err != nil {
		return "", fmt.Errorf("start the program for archives: %w", err)
	}
	var said tail.Writer
	heard := make(chan struct{})
	go func() { // waited for below
		defer close(heard)
		_, _ = io.Copy(&said, r)
	}()
	stop := context.AfterFunc(ctx, func() { _ = process.Kill() }) // the program may have ended
	state, err := process.Wait()
	stop()
	_ = r.SetReadDeadline(time.Now().Add(lateOutput))
	<-heard
	note = said.String()
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil:
		return "", err
	case !state.Success():
		return "", errors.New(cmp.Or(strings.TrimPrefix(note, "stepmux: "), state.String()))
	}
	return note, nil
}

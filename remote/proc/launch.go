package proc

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"
)

// startSlots bounds how many commands are being started at a time. Starting is nothing but processor
// time: more at once would make all of them late instead of some.
var startSlots = make(slots, 8)

// slots is a semaphore that a context can leave.
type slots chan struct{}

func (s slots) acquire(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s slots) release() { <-s }

// launch starts the shim for c, without its command yet, and the goroutines of the Process.
func launch(c *Command) (p *Process, err error) {
	control, theirs, err := channelPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		control.close()
		return nil, err
	}
	defer null.Close()
	p = newProcess(c.Argv[0], control)
	files := []*os.File{null, null, null, theirs}
	for i, w := range []io.Writer{c.Stdout, c.Stderr} {
		if w == nil {
			continue
		}
		pump, end, err := newPump([]string{"stdout", "stderr"}[i], w)
		if err != nil {
			p.discard()
			return nil, err
		}
		defer end.Close()
		p.pumps = append(p.pumps, pump)
		files[1+i] = end
	}
	p.shim, err = os.StartProcess("/proc/self/exe", shimArgs, &os.ProcAttr{
		Dir:   "/",
		Env:   []string{}, // none: nil would be ours
		Files: files,
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		p.discard()
		return nil, fmt.Errorf("start its shim: %w", bare(err))
	}
	go p.listen()
	for _, pump := range p.pumps {
		go pump.run()
	}
	return p, nil
}

// discard closes the files of a Process that was never started.
func (p *Process) discard() {
	p.control.close()
	for _, pump := range p.pumps {
		pump.out.Close()
	}
}

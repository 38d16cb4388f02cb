package proc

import (
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/stepmux/stepmux/internal/oserr"
)

// startSlots bounds how many commands start at a time. A start only takes processor time: with more at once, all of
// them would be late instead of some.
var startSlots = make(chan struct{}, 8)

// launch starts a shim that has no command yet, and the goroutine that listens to it.
func launch() (*Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	control, theirs, err := channelPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	p := newProcess(control)
	err = startShim(p, &os.ProcAttr{
		Dir:   "/",
		Env:   []string{}, // empty: nil would be this process's
		Files: []*os.File{null, null, null, theirs},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		control.Close()
		return nil, fmt.Errorf("start its shim: %w", oserr.Bare(err))
	}
	go p.listen()
	return p, nil
}

// connect makes the pipes for the output of c, starts their pumps, and hands the other ends to the shim.
func (p *Process) connect(c *Command) error {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	ends := [2]*os.File{null, null}
	for i, w := range [2]io.Writer{c.Stdout, c.Stderr} {
		if w == nil {
			continue
		}
		pump, end, err := newPump([2]string{"stdout", "stderr"}[i], w)
		if err != nil {
			return err
		}
		defer end.Close()
		go pump.run()
		p.pumps = append(p.pumps, pump)
		ends[i] = end
	}
	return sendCommand(p.control, c, ends[0], ends[1])
}

package component

import (
	"cmp"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/tail"
)

// endTime is how long the program that fetches may take to end by itself, before it is killed.
const endTime = 10 * time.Second

// program is a process that fetches one step. It does not use os/exec, which would make the VM's end larger.
type program struct {
	process *os.Process
	in, out *os.File
	said    tail.Writer   // its standard error
	heard   chan struct{} // closed when said is complete
	errs    *os.File
	ending  sync.Once
	late    *time.Timer // kills it
}

// startProgram starts a program, which gets the file more as ArchiveFile unless that is nil. If we die, it is killed,
// and git with it. The caller calls wait.
func startProgram(command []string, more *os.File) (_ *program, err error) {
	var ours, its [3]*os.File
	for i := range its {
		r, w, failed := os.Pipe()
		if failed != nil {
			err = failed
			break
		}
		if ours[i], its[i] = r, w; i == 0 {
			ours[i], its[i] = w, r
		}
	}
	p := &program{in: ours[0], out: ours[1], errs: ours[2], heard: make(chan struct{})}
	files := its[:]
	if more != nil {
		files = append(files[:len(files):len(files)], more)
	}
	if err == nil {
		p.process, err = os.StartProcess(command[0], command, &os.ProcAttr{
			Files: files, Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
		})
	}
	for i := range its {
		_ = its[i].Close() // fails only for a file that was not opened
		if err != nil {
			_ = ours[i].Close()
		}
	}
	if err != nil {
		return nil, err
	}
	go func() { // wait waits for it
		defer close(p.heard)
		_, _ = io.Copy(&p.said, p.errs)
	}()
	return p, nil
}

// end closes the program's input. If it does not end by that, it is killed.
func (p *program) end() {
	p.ending.Do(func() {
		p.late = time.AfterFunc(endTime, func() { _ = p.process.Kill() }) // it may have ended already
		_ = p.in.Close()
	})
}

// wait waits for the end of the program, and returns its error output if it failed.
func (p *program) wait() string {
	p.end()
	_ = p.out.Close()
	state, err := p.process.Wait()
	p.late.Stop()
	_ = p.errs.SetReadDeadline(time.Now().Add(endTime)) // other processes may hold it open
	<-p.heard
	_ = p.errs.Close()
	why := cmp.Or(strings.TrimPrefix(p.said.String(), "stepmux: "), "the program gave no reason")
	if err == nil && !state.Success() {
		why = state.String() + ": " + why
	}
	return why
}

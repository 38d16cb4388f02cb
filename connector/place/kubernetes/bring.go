package kubernetes

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/mux/channel"
)

// machines are the platforms by the machine names of uname.
var machines = map[string]string{"x86_64": "linux/amd64", "aarch64": "linux/arm64"}

// programFiles returns the names of the files of all programs.
func programFiles(programs []*program.Binary) []string {
	names := map[string]bool{}
	for _, bin := range programs {
		for name := range bin.Files() {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// bring uploads the program into the pod through its init container, which waits for it.
func (p *Pod) bring(ctx context.Context) error {
	_, err := p.await(ctx, func(o *object) bool {
		state := o.container(initName).State
		return state.Running != nil || state.Terminated != nil
	})
	if err != nil {
		return err
	}
	began := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for _, name := range programFiles(p.cfg.Programs) {
		group.Go(func() error {
			return persist(ctx, passingExec(), func() error {
				p.mu.Lock()
				ended := p.alive.Err() != nil || p.seen.container(initName).State.Terminated != nil
				p.mu.Unlock()
				if ended { // the next wait reports why; or the file arrived and the answer was lost
					return nil
				}
				err := p.bringFile(ctx, name)
				if err != nil && ctx.Err() == nil {
					p.cfg.Logger.Info("stepmux could not be put into the pod", "pod", p.name, "file", name, "error", err)
				}
				return err
			})
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("put stepmux into pod %s: %w", p.name, err)
	}
	p.cfg.Logger.Debug("stepmux put into the pod", "pod", p.name, "took", time.Since(began))
	return nil
}

// bringFile uploads one file with bringScript. It may take long, but bytes must move.
func (p *Pod) bringFile(ctx context.Context, name string) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := p.cfg.ReadyTimeout
	stalled := time.AfterFunc(stall, func() { cancel(fmt.Errorf("nothing of %s was taken for %v", name, stall)) })
	defer stalled.Stop()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	var said tail.Writer
	s, err := p.cluster.execute(ctx, p.name, initName, &said, "sh", "-c", bringScript, "sh", name)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()                         // always nil
	stop := context.AfterFunc(ctx, func() { _ = s.Close() }) // always nil
	defer stop()
	err = p.sendFile(s, name, func(all bool) {
		if all { // the rest is in buffers on the way
			stalled.Reset(4 * stall)
		} else {
			stalled.Reset(stall)
		}
	})
	if _, none := errors.AsType[*noProgramError](err); none || err == nil {
		return err
	}
	_, _ = io.Copy(io.Discard, s) // read to the end to learn the script's exit status, which explains an error
	exit := s.exit(ctx)
	if _, known := errors.AsType[*channel.ExitError](exit); known {
		return fmt.Errorf("%w: %s", exit, said.String())
	}
	return cmp.Or(err, exit)
}

// noProgramError reports that there is no program for the pod's machine.
type noProgramError string

func (e *noProgramError) Error() string { return string(*e) }

func noProgram(format string, args ...any) error {
	e := noProgramError(fmt.Sprintf(format, args...))
	return &e
}

// sendFile sends the program for the machine that the script at the other end reports, and reads the script's
// confirmation. It calls moved whenever a part was taken, and when all was.
func (p *Pod) sendFile(s execution, name string, moved func(all bool)) error {
	answers := bufio.NewReader(io.LimitReader(s, maxText))
	machine, err := answers.ReadString('\n')
	if err != nil {
		return err
	}
	bin, err := p.programFor(strings.TrimSpace(machine))
	if err != nil {
		return err
	}
	file := bin.Files()[name]
	if file == nil {
		return noProgram("%s has no %s, which the program for another machine has", bin.Name(), name)
	}
	text, size, err := file.Open()
	if err != nil {
		return noProgram("%v", err)
	}
	defer text.Close()
	_, err = fmt.Fprintf(s, "%d\n", size)
	if err == nil {
		_, err = io.CopyBuffer(progress{s, moved}, text, make([]byte, maxPiece))
	}
	if err == nil {
		err = s.CloseWrite()
		moved(true)
	}
	last, readErr := io.ReadAll(answers)
	switch {
	case string(last) == brought+"\n":
		return nil // the container may have ended before the server reported the script's end
	case err == nil && readErr == nil:
		return errNoStatus
	default:
		return errors.Join(err, readErr)
	}
}

// progress is a writer that calls moved after each Write.
type progress struct {
	io.Writer
	moved func(all bool)
}

func (p progress) Write(text []byte) (int, error) {
	defer p.moved(false)
	return p.Writer.Write(text)
}

// programFor returns the program for a machine as uname names it.
func (p *Pod) programFor(machine string) (*program.Binary, error) {
	platform := machines[machine]
	for _, bin := range p.cfg.Programs {
		switch {
		case bin.Platform() != platform:
		case bin.Dynamic():
			return nil, noProgram("%s needs shared libraries, which the image may not have; use one of make build, or "+
				"build it with CGO_ENABLED=0", bin.Name())
		default:
			return bin, nil
		}
	}
	return nil, noProgram("the node's machine is %.40q, and there is no stepmux for it; name one: "+
		"--bootstrap-binary %s=FILE", machine, platform)
}

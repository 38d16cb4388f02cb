package connector

import (
	"context"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/mux"
)

// Kind says which way a step runner is driven.
type Kind string

const (
	// Stepmux is our own program: it has a relay, ends with its stdin and serves stepmux.v1.
	Stepmux Kind = "stepmux"
	// StepRunner is GitLab's, gitlab-runner or step-runner: no relay, no leash, and the service that the
	// manager of GitLab Runner calls.
	StepRunner Kind = "step-runner"
)

// Program is the step runner of a VM, as it was found there.
type Program struct {
	Kind Kind
	// Version and Platform (os/arch as Go names them) are the program's word; empty if it did not say.
	Version, Platform string
	// Command starts it.
	Command []string
	// Uploaded tells that it was put there from here, by Config.Bootstrap.
	Uploaded bool
}

// String describes p for people.
func (p Program) String() string {
	parts := []string{string(p.Kind)}
	if p.Version != "" {
		parts = append(parts, p.Version)
	}
	if p.Platform != "" {
		parts = append(parts, "for "+p.Platform)
	}
	how := "as "
	if p.Uploaded {
		how = "uploaded to "
	}
	return strings.Join(parts, " ") + ", " + how + strings.Join(p.Command, " ")
}

// search is one build's attempt to find the VM's step runner, for all that wait for it. Nothing of it but
// done is looked at before that is closed.
type search struct {
	conn    *mux.Conn
	runner  []string // as it is configured
	done    chan struct{}
	program *Program
	err     error // nil too when the attempt was given up
}

// programOn returns the VM's step runner as it was found by way of conn. While nobody knows it, it asks one
// caller to find out: then ask is not nil and must be ended. The others wait for that, bounded by ctx, and
// share an error; if the attempt was given up one of them is asked.
func (v *VM) programOn(ctx context.Context, conn *mux.Conn, runner []string) (known *Program, ask *search, err error) {
	for {
		v.mu.Lock()
		s := v.search
		if s == nil || s.conn != conn || !slices.Equal(s.runner, runner) || s.over() {
			s = &search{conn: conn, runner: runner, done: make(chan struct{})}
			v.search = s
			v.relay = verdict{} // of a program that may be another now
			v.mu.Unlock()
			return nil, s, nil
		}
		v.mu.Unlock()
		select {
		case <-s.done:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		if s.program != nil || s.err != nil {
			return s.program, nil, s.err
		}
	}
}

// over reports whether s has ended without a program: what was wrong may have been put right.
func (s *search) over() bool {
	select {
	case <-s.done:
		return s.program == nil
	default:
		return false
	}
}

// end ends an attempt.
func (s *search) end(p *Program, err error) {
	s.program, s.err = p, err
	close(s.done)
}

// Program returns the step runner that was found last, the zero value before that.
func (v *VM) Program() Program {
	v.mu.Lock()
	s := v.search
	v.mu.Unlock()
	if s == nil || s.over() {
		return Program{}
	}
	select {
	case <-s.done:
		return *s.program
	default:
		return Program{}
	}
}

// tellSkew reports whether it is for the caller to say that the VM's program is of another version.
func (v *VM) tellSkew() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	told := v.skewTold
	v.skewTold = true
	return !told
}

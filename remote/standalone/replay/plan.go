package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/remote/standalone"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
)

// Config says how a trace is to be repeated.
type Config struct {
	// WorkDir is where: an absolute path of a directory that exists. The steps of the project are in it.
	WorkDir string
	// Store fetches the components. The caller closes it after the Plan.
	Store Exact
	// Secrets are the masked values, by the names of variables and inputs, or by JSON pointers into the identity.
	Secrets map[string]string
	// Runtime decides about other machines and programs. If empty, ExactRuntime.
	Runtime Runtime
	// AllowChanged accepts changed steps of the project. The comparison shows the effects.
	AllowChanged bool
	// Version is that of this program.
	Version string
	// VMsEnd returns the SHA-256 of the VM's end that belongs to this program. A trace of that program is one of this
	// program. Optional.
	VMsEnd func() (string, error)
}

// Plan is a job that repeats a trace.
type Plan struct {
	// Job is the job, to run with Fetcher in the work directory. Its notices name the differences found so far.
	Job *standalone.Job
	// Fetcher gives the job the components of the trace and no others.
	Fetcher engine.Fetcher
	// Salt is for the HMACs of its trace: with the salt of the old one both can be compared.
	Salt       *mask.Salt
	components *recorded
	workDir    string
	vmsEnd     bool // the VM's end that belongs to this program made the trace
}

// Prepare checks that t can be repeated, fetches its components, and returns the plan. It runs nothing of the job.
// The error is a *RefusedError if something is not as it was, a *MissingError if values are missing, ErrTrace if t
// itself is wrong. The caller closes the plan.
func Prepare(ctx context.Context, t *trace.Trace, cfg Config) (*Plan, error) {
	paths := &recording.Paths{}
	paths.Add(cfg.WorkDir, trace.WorkDir)
	s := &secrets{
		sums: t.Secrets, paths: paths, given: cfg.Secrets, used: map[string]bool{}, restored: map[string]string{},
	}
	given, err := restore(&t.Identity.Job, s)
	if missing := (*MissingError)(nil); err != nil && !errors.As(err, &missing) {
		err = fmt.Errorf("%w: %s", ErrTrace, graphic(err.Error())) // which may be of the trace's own making
	}
	if err != nil {
		return nil, err
	}
	given.Source = t.Identity.Job.Source
	plan := &Plan{workDir: cfg.WorkDir, Salt: t.Secrets, components: &recorded{store: cfg.Store, next: map[string]int{}}}
	plan.Fetcher = plan.components
	for _, name := range s.wrong {
		given.Notices = append(given.Notices,
			fmt.Sprintf("the secret %s is not the one the job had; what it is used for will be different", shownPath(name)))
	}
	own := recording.Runtime(cfg.Version)
	then := t.Identity.Runtime.Runner.Digest[trace.SHA256]
	if cfg.VMsEnd != nil && then != own.Runner.Digest[trace.SHA256] {
		end, err := cfg.VMsEnd()
		if err != nil {
			return nil, err
		}
		if plan.vmsEnd = end == then; plan.vmsEnd {
			own.Runner = t.Identity.Runtime.Runner
		}
	}
	notices, refused := cfg.compare(&t.Identity, own, paths)
	given.Notices = append(given.Notices, notices...)
	if len(refused.Reasons) > 0 {
		return nil, refused
	}
	plan.components.with = credentials(given.Vars, cfg.Secrets)
	given.Secrets = append(given.Secrets, passwords(plan.components.with, given.Vars)...)
	refused.Reasons = plan.components.obtain(ctx, &t.Identity, given.Definition, paths)
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case len(refused.Reasons) > 0:
		err = refused
	}
	if err != nil {
		plan.Close()
		return nil, err
	}
	plan.Job = standalone.NewJob(given)
	return plan, nil
}

// compare finds differences of the machine, the programs and the project's steps. It returns them as notices if cfg
// accepts them, else in refused.
func (c *Config) compare(
	id *trace.Identity, own trace.Runtime, paths *recording.Paths,
) (notices []string, refused *RefusedError) {
	refused = &RefusedError{}
	found := func(changed []string, allowed bool, hint string) {
		switch {
		case allowed:
			notices = append(notices, changed...)
		case len(changed) > 0:
			refused.Reasons, refused.Hints = append(refused.Reasons, changed...), append(refused.Hints, hint)
		}
	}
	if mode := cmp.Or(c.Runtime, ExactRuntime); mode != IgnoreRuntime {
		found(changedRuntime(id, own, paths), mode == WarnRuntime,
			"use the machine and the programs of the trace, or --runtime warn")
	}
	found(changedLocals(id, paths), c.AllowChanged,
		"put back the steps of the project as they were, or use --allow-changed-components")
	return notices, refused
}

// Close lets go of the components. It is idempotent.
func (p *Plan) Close() { p.components.release() }

// Refused returns the error of a job that has ended and was refused something while it ran; nil if it was not.
func (p *Plan) Refused() error {
	p.components.mu.Lock()
	defer p.components.mu.Unlock()
	if len(p.components.refused) == 0 {
		return nil
	}
	return &RefusedError{Reasons: p.components.refused, Late: true}
}

// credentials are those in the job's variables, and in secrets beside these.
func credentials(vars []engine.Variable, given map[string]string) fetch.Credentials {
	return component.FromVariables(func(name string) string {
		for _, v := range vars {
			if v.Key == name {
				return v.Value
			}
		}
		return strings.TrimSuffix(given[name], "\n")
	})
}

// passwords are those of c that the job did not have as variables that are no secrets.
func passwords(c fetch.Credentials, vars []engine.Variable) []string {
	var list []string
	for _, l := range c.Logins {
		if !slices.ContainsFunc(vars, func(v engine.Variable) bool { return v.Value == l.Password && !v.Masked }) {
			list = append(list, l.Password)
		}
	}
	return list
}

// isCredential reports whether a variable can be of use for fetching, though no step read it.
func isCredential(name string) bool {
	asked := false
	component.FromVariables(func(variable string) string {
		asked = asked || variable == name
		return ""
	})
	return asked
}

package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
)

// Config says how to repeat a trace.
type Config struct {
	// WorkDir is the directory of the job. It is an absolute path and exists. It has the steps of the project.
	WorkDir string
	// Store fetches the components. The caller closes it after the Plan.
	Store Exact
	// Secrets are the masked values. The keys are the names of variables and inputs, or JSON pointers into the
	// identity.
	Secrets map[string]string
	// Runtime says whether other machines and programs are accepted. If empty, ExactRuntime.
	Runtime Runtime
	// AllowChanged accepts changed steps of the project. The comparison shows their effects.
	AllowChanged bool
	// Version is the version of this program.
	Version string
	// VMsEnd returns the SHA-256 of the VM's end that belongs to this program. A trace made by that program counts as
	// made by this one. Optional.
	VMsEnd func() (string, error)
}

// Plan is a job that repeats a trace.
type Plan struct {
	// Job is the job. Run it with Fetcher in the work directory. Its notices name the differences that were found so
	// far.
	Job *standalone.Job
	// Fetcher returns only the components of the trace.
	Fetcher component.Getter
	// Salt is for the HMACs of the new trace. It is the salt of the old one, so that both can be compared.
	Salt       *mask.Salt
	components *recorded
	workDir    string
	vmsEnd     bool // the VM's end that belongs to this program made the trace
}

// Prepare checks that t can be repeated, fetches its components, and returns the plan. It does not run the job. The
// error is a *RefusedError if something has changed, a *MissingError if values are missing, and ErrTrace if t itself is
// wrong. The caller closes the plan.
func Prepare(ctx context.Context, t *trace.Trace, cfg Config) (*Plan, error) {
	paths := &recording.Paths{}
	paths.Add(cfg.WorkDir, trace.WorkDir)
	s := &secrets{
		sums: t.Secrets, paths: paths, given: cfg.Secrets, used: map[string]bool{}, restored: map[string]string{},
	}
	given, err := restore(&t.Identity.Job, s)
	if missing := (*MissingError)(nil); err != nil && !errors.As(err, &missing) {
		err = fmt.Errorf("%w: %s", ErrTrace, graphic(err.Error())) // the text may come from the trace
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

// compare finds differences of the machine, the programs and the project's steps. If cfg accepts them, they are
// notices, otherwise refused.
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

// Close releases the components. It is idempotent.
func (p *Plan) Close() { p.components.release() }

// Refused returns the error of an ended job that needed a component which is not in the trace, or nil.
func (p *Plan) Refused() error {
	p.components.mu.Lock()
	defer p.components.mu.Unlock()
	if len(p.components.refused) == 0 {
		return nil
	}
	return &RefusedError{Reasons: p.components.refused, Late: true}
}

// credentials returns the credentials in the job's variables, and those in given.
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

// passwords returns the passwords of c that are not masked variables of the job.
func passwords(c fetch.Credentials, vars []engine.Variable) []string {
	var list []string
	for _, l := range c.Logins {
		if !slices.ContainsFunc(vars, func(v engine.Variable) bool { return v.Value == l.Password && !v.Masked }) {
			list = append(list, l.Password)
		}
	}
	return list
}

// isCredential reports whether a variable may be needed for fetching, even if no step read it.
func isCredential(name string) bool {
	asked := false
	component.FromVariables(func(variable string) string {
		asked = asked || variable == name
		return ""
	})
	return asked
}

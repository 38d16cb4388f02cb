package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// prechecked is how many levels of local steps are looked at before the first step runs.
const prechecked = 2

// precheck finds mistakes in the steps that f refers to before any of them runs: a job fails in milliseconds, not
// after an hour. Missing files are no mistake yet: an earlier step may create them.
func (r *Runner) precheck(ctx context.Context, f *frame) error {
	c := &checker{r: r, done: map[*pb.Definition]bool{}, found: map[string]Found{}}
	return c.check(ctx, f, 0)
}

// maxPrechecked is the most steps that are looked at.
const maxPrechecked = 2 * maxRun

type checker struct {
	r     *Runner
	count int                     // of the steps looked at
	done  map[*pb.Definition]bool // what was looked at, on the first level
	found map[string]Found        // by where it was looked for
}

func (c *checker) check(ctx context.Context, f *frame, level int) error {
	for _, s := range f.def.GetSteps() {
		if c.count++; c.count > maxPrechecked {
			return nil
		}
		if err := c.checkStep(ctx, f, s, level); err != nil {
			return fmt.Errorf("step %q: %w", s.GetName(), err)
		}
	}
	return nil
}

func (c *checker) checkStep(ctx context.Context, f *frame, s *pb.Step, level int) error {
	if def := s.GetDefinition(); def != nil {
		return c.check(ctx, &frame{def: def, dir: f.dir, root: f.root}, level)
	}
	ref := s.GetReference()
	switch ref.GetProtocol() {
	case pb.Reference_local, pb.Reference_builtin:
	default:
		return nil
	}
	found, err := c.load(ctx, f, ref)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = lang.CheckCall(found.Definition.GetSpec(), s.GetInputs())
	}
	if err != nil || level+1 >= prechecked || level == 0 && c.done[found.Definition] {
		return err
	}
	c.done[found.Definition] = true
	return c.check(ctx, &frame{def: found.Definition, dir: found.Dir, root: found.Root}, level+1)
}

// load is the runner's, once for each step.
func (c *checker) load(ctx context.Context, f *frame, ref *pb.Reference) (Found, error) {
	key := strings.Join([]string{f.dir, ref.GetProtocol().String(), ref.GetPath(), ref.GetFile()}, "\x00")
	found, ok := c.found[key]
	if ok {
		return found, nil
	}
	found, err := c.r.load(ctx, f, ref)
	if err == nil {
		c.found[key] = found
	}
	return found, err
}

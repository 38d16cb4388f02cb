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

// prechecked is how many levels of local steps are checked before the first step runs.
const prechecked = 2

// precheck finds mistakes in the steps that f refers to before the first step runs. So a job fails in milliseconds, not
// after an hour. A missing file is no mistake yet: an earlier step may create it.
func (r *Runner) precheck(ctx context.Context, f *frame) error {
	c := &checker{r: r, done: map[*pb.Definition]bool{}, found: map[string]Found{}, may: true}
	return c.check(ctx, f, 0)
}

// Check finds the mistakes in the local steps of def that a run would find before its first step. def is a job in dir,
// or the definition of a step in dir. A missing step is a mistake, too, if it certainly runs and no step before it can
// have made it.
func Check(ctx context.Context, def *pb.Definition, dir string) error {
	c := &checker{r: New(Config{Definition: def}), done: map[*pb.Definition]bool{}, found: map[string]Found{}}
	if err := c.check(ctx, &frame{def: def, dir: dir}, 0); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// maxPrechecked bounds the number of steps that are checked.
const maxPrechecked = 2 * maxRun

type checker struct {
	r     *Runner
	count int                     // of checked steps
	done  map[*pb.Definition]bool // the checked definitions of the first level
	found map[string]Found        // by the searched path
	// may says that a missing step is no mistake: an earlier step may make it, or it may be skipped.
	may bool
}

func (c *checker) check(ctx context.Context, f *frame, level int) error {
	for _, s := range f.def.GetSteps() {
		if c.count++; c.count > maxPrechecked || ctx.Err() != nil || c.r.stopping() != nil {
			return nil //nolint:nilerr // the callers of check see the end of ctx
		}
		if err := c.checkStep(ctx, f, s, level); err != nil {
			return fmt.Errorf("step %q: %w", s.GetName(), err)
		}
		if s.GetDefinition().GetType() != pb.DefinitionType_steps { // the steps of a list were checked
			c.may = true
		}
	}
	return nil
}

func (c *checker) checkStep(ctx context.Context, f *frame, s *pb.Step, level int) error {
	c.may = c.may || s.GetCondition() != "" || s.GetWhen() == lang.OnFailure
	if def := s.GetDefinition(); def != nil {
		return c.check(ctx, &frame{def: def, dir: f.dir, root: f.root}, level)
	}
	ref := s.GetReference()
	if p := ref.GetProtocol(); p != pb.Reference_local && p != pb.Reference_builtin {
		return nil
	}
	found, err := c.load(ctx, f, ref)
	if errors.Is(err, fs.ErrNotExist) && c.may {
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

// load is Runner.load, once for each step.
func (c *checker) load(ctx context.Context, f *frame, ref *pb.Reference) (Found, error) {
	key := strings.Join([]string{f.dir, ref.GetProtocol().String(), ref.GetPath(), ref.GetFile()}, "\x00")
	if found, ok := c.found[key]; ok {
		return found, nil
	}
	found, err := c.r.load(ctx, f, ref)
	if err == nil {
		c.found[key] = found
	}
	return found, err
}

package replay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/step/lang"
	"github.com/stepmux/stepmux/remote/step/trace"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
)

// visit calls fn for each step of a trace whose definition was found. name has the names that lead to it, and step is
// its place in the definition, if that is known.
func visit(list []trace.Step, def *pb.Definition, names string, fn func(s *trace.Step, step *pb.Step, name string)) {
	for i := range list {
		s := &list[i]
		name := strings.TrimPrefix(names+"."+s.Name, ".")
		var step *pb.Step
		if i < len(def.GetSteps()) {
			step = def.GetSteps()[i]
		}
		fn(s, step, name)
		inner := step.GetDefinition()
		if len(s.Definition) > 0 {
			inner, _ = trace.DecodeDefinition(s.Definition) // after an error, such as a masked text, it is not known
		}
		visit(s.Steps, inner, name, fn)
	}
}

// sourceOf returns the source of a component in the form of the store.
func sourceOf(c *trace.Component, paths *recording.Paths) fetch.Source {
	prefixed := func(kind string) string {
		if digest := c.Digest[kind]; digest != "" {
			return "sha256:" + digest
		}
		return ""
	}
	return fetch.Source{
		Kind: c.Kind, Location: paths.Expand(c.Location), Version: c.Version, ResolvedRef: c.ResolvedRef,
		Commit: c.Digest[trace.GitCommit], GitTree: c.Digest[trace.GitTree],
		Digest: prefixed(trace.SHA256), Tree: prefixed(trace.SHA256Tree),
	}
}

// Exact fetches components by their digests. A [*fetch.Store] implements it.
type Exact interface {
	FetchExactly(
		ctx context.Context, ref *pb.Reference, want fetch.Source, with fetch.Credentials,
	) (*fetch.Component, error)
}

// recorded has the components of a trace. It is the job's Fetcher, and returns only these.
type recorded struct {
	store Exact
	with  fetch.Credentials // used instead of the credentials in the job's variables

	sources []fetch.Source // in the order in which they were fetched, with repetitions
	held    []*fetch.Component

	mu      sync.Mutex     // guards the following
	next    map[string]int // how often each reference was used
	refused []string
}

// obtain fetches all components of the trace, and holds them until release.
func (r *recorded) obtain(
	ctx context.Context, id *trace.Identity, def *pb.Definition, paths *recording.Paths,
) (reasons []string) {
	seen := map[fetch.Source]bool{}
	visit(id.Steps, def, "", func(s *trace.Step, step *pb.Step, name string) {
		if s.Component == nil || ctx.Err() != nil {
			return
		}
		switch s.Component.Kind {
		case trace.Git, trace.Zip, trace.OCI:
		default:
			return
		}
		want := sourceOf(s.Component, paths)
		r.sources = append(r.sources, want)
		if seen[want] {
			return
		}
		seen[want] = true
		ref, err := referenceTo(want, step)
		if err == nil {
			var c *fetch.Component
			if c, err = r.store.FetchExactly(ctx, ref, want, r.with); err == nil {
				r.held = append(r.held, c)
			}
		}
		if err != nil {
			reasons = append(reasons,
				fmt.Sprintf("step %s: %s: %v", graphic(name), graphic(lang.WithoutUserinfo(want.Location)), err))
		}
	})
	return reasons
}

// referenceTo returns the reference by which want was fetched, which may contain credentials. If that reference has
// expressions, it returns one to the place where the component was found.
func referenceTo(want fetch.Source, step *pb.Step) (*pb.Reference, error) {
	if ref := step.GetReference(); ref != nil && fetch.IsOf(want, ref) {
		return ref, nil
	}
	return fetch.Reference(want)
}

// Fetch implements [component.Getter]: it returns the component to which ref led when the trace was made.
func (r *recorded) Fetch(ctx context.Context, ref *pb.Reference, _ fetch.Credentials) (*fetch.Component, error) {
	want, found := r.pick(ref)
	if !found {
		return nil, r.refuse(fmt.Sprintf("%s is not in the trace, and nothing else is fetched", lang.Describe(ref)))
	}
	c, err := r.store.FetchExactly(ctx, ref, want, r.with)
	if changed := (*fetch.ChangedError)(nil); errors.As(err, &changed) {
		return nil, r.refuse(fmt.Sprintf("%s: %v", lang.Describe(ref), err))
	}
	return c, err
}

// pick returns the source of ref. If there are several, it returns the first unused one, or the last.
func (r *recorded) pick(ref *pb.Reference) (want fetch.Source, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key, err := protojson.Marshal(ref)
	if err != nil {
		return want, false
	}
	n := r.next[string(key)]
	for _, s := range r.sources {
		if !fetch.IsOf(s, ref) {
			continue
		}
		want, found = s, true
		if n == 0 {
			break
		}
		n--
	}
	r.next[string(key)]++
	return want, found
}

func (r *recorded) refuse(reason string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused = append(r.refused, reason)
	return errors.New("the replay is refused: " + reason)
}

// release releases the components of obtain.
func (r *recorded) release() {
	for _, c := range r.held {
		c.Release()
	}
	r.held = nil
}

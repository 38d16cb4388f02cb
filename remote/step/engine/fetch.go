package engine

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// fetch gets a step that is not local, within the limits of f. Stop ends it.
func (r *Runner) fetch(ctx context.Context, f *frame, ref *pb.Reference) (Found, error) {
	name := lang.Describe(ref)
	if r.cfg.Fetcher == nil {
		return Found{}, fmt.Errorf(
			"fetch %s: this program fetches no steps from %s; use a step of the project, such as ./build", name,
			ref.GetProtocol())
	}
	c, err := r.fetching(ctx, f, ref)
	if err != nil {
		return Found{}, fmt.Errorf("fetch %s: %w", name, err)
	}
	if rel, err := filepath.Rel(c.Root, filepath.Join(c.Dir, c.File)); err == nil && rel != "." {
		name += " in " + rel
	}
	found, err := r.find(c.Dir, c.File, c.Root, name)
	found.Source, found.Cached = &c.Source, c.Cached
	return found, err
}

// fetching fetches the component of ref, within the limits of f. Stop ends it.
func (r *Runner) fetching(ctx context.Context, f *frame, ref *pb.Reference) (*component.Component, error) {
	ref, err := r.fetchable(f, ref)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l := f.limits.next()
	if l != nil {
		var end context.CancelFunc
		ctx, end = context.WithDeadlineCause(ctx, l.at, l.why)
		defer end()
	}
	r.attach(func(s *stop) { cancel(errors.New(s.message)) })
	defer r.release()
	c, err := r.component(ctx, ref)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
		if l != nil && errors.Is(err, l.why) {
			l.extend(r.cfg.AlwaysLimit)
		}
	}
	return c, err
}

// component fetches the component of ref, and keeps it until the job ends. The whole job uses the same commit of each
// version.
func (r *Runner) component(ctx context.Context, ref *pb.Reference) (*component.Component, error) {
	for _, c := range r.components {
		if same, ok := c.For(ref); ok {
			return same, nil
		}
	}
	c, err := r.cfg.Fetcher.Fetch(ctx, ref, r.credentials)
	if err == nil {
		r.components = append(r.components, c)
		r.tell(func(e Events) { e.ComponentFetched(c) })
	}
	return c, err
}

// fetchable returns ref with the absolute path of a local archive, which is relative to the definition that ref stands
// in. It masks the secrets in ref from now on.
func (r *Runner) fetchable(f *frame, ref *pb.Reference) (*pb.Reference, error) {
	path, remote := ref.GetUrl(), false
	if u, _ := url.Parse(path); u != nil {
		remote = u.Scheme != "" && u.Host != "" // the path of a local archive may have :// in it
		if password, ok := u.User.Password(); ok && password != "" {
			if err := r.hide(password); err != nil {
				return nil, fmt.Errorf("mask its password: %w", err)
			}
		}
		if u.Scheme == "file" && (u.Host == "" || u.Host == "localhost") {
			path, remote = u.Path, false
		}
	}
	if ref.GetProtocol() != pb.Reference_zip || remote {
		return ref, nil
	}
	at, err := f.locate(path)
	ref = proto.CloneOf(ref)
	ref.Url = at
	return ref, err
}

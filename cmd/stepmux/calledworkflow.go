package main

import (
	"context"
	"fmt"

	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/fetch"
)

// fetchWorkflow returns a function that fetches the repository of a called workflow, as the actions of a job are
// fetched: into the same cache, from the same mirror.
func fetchWorkflow(
	ctx context.Context, actions action.Config, cacheDir string,
) func(of action.Uses) (string, string, func(), error) {
	return func(of action.Uses) (dir, commit string, release func(), err error) {
		if actions.RequirePinned && !of.IsPinned() {
			return "", "", nil, fmt.Errorf("it is not pinned: write the full commit in place of %.64q, or leave out "+
				"--require-pinned", of.Rev)
		}
		mirrors, err := actions.Mirrors()
		if err != nil {
			return "", "", nil, err
		}
		store, err := fetch.New(fetch.Config{Dir: cacheDir, Mirrors: mirrors})
		if err != nil {
			return "", "", nil, err
		}
		ref := &stepmuxv1.Reference{Protocol: stepmuxv1.Reference_git, Url: of.URL(), Rev: of.Rev}
		c, err := store.Fetch(ctx, ref, component.Credentials{})
		if err != nil {
			_ = store.Close() // the error is that of the fetch
			return "", "", nil, err
		}
		return c.Root, c.Commit, func() {
			c.Release()
			_ = store.Close() // the workflow has been read
		}, nil
	}
}

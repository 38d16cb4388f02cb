package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// minAbbreviated is the smallest number of digits of an abbreviated commit.
const minAbbreviated = 7

// resolve returns the commit to which rev leads in repo now, and the ref that rev names. It may use an answer that
// another job received after this Fetch began.
func (f *fetcher) resolve(ctx context.Context, repo *repository, rev string) (commit, ref string, err error) {
	if err := lang.CheckRevision(rev); err != nil {
		return "", "", err
	}
	a, err := f.ask(ctx, keyOf("ref", repo.location, rev), func() (answer, error) {
		tmp, err := f.cache.scratch()
		if err != nil {
			return answer{}, err
		}
		defer tmp.remove()
		g, err := f.newGit(ctx, repo, tmp, "sha1")
		if err != nil {
			return answer{}, err
		}
		defer g.close()
		return g.lookUp(ctx, rev)
	})
	return a.Is, a.Ref, err
}

// ask returns the answer of question, or an answer that another process received after this Fetch began. If several
// processes want the answer, one calls question and the others wait.
func (f *fetcher) ask(ctx context.Context, key string, question func() (answer, error)) (a answer, err error) {
	unlock, err := f.cache.lock(ctx, key, func() bool { return f.cache.read(answerDir, key, &a) && a.within(f.began) })
	if unlock == nil || err != nil {
		return a, err
	}
	defer unlock()
	asked := time.Now().UnixNano()
	if a, err = question(); err != nil {
		return a, err
	}
	a.Asked = asked
	return a, f.cache.write(answerDir, key, a)
}

// lookUp asks the server for the commit of rev: a tag, a branch, another ref or an abbreviated commit, in this order.
func (g *gitProgram) lookUp(ctx context.Context, rev string) (answer, error) {
	names := []string{"refs/tags/" + rev, "refs/heads/" + rev}
	if rev == "HEAD" || strings.HasPrefix(rev, "refs/") {
		names = append(names, rev)
	}
	var patterns []string
	for _, name := range names {
		patterns = append(patterns, name, name+"^{}")
	}
	refs, err := g.remoteRefs(ctx, patterns...)
	if err != nil {
		return answer{}, err
	}
	for _, name := range names {
		if is := refs.commit(name); is != "" {
			return answer{Is: is, Ref: name}, nil
		}
	}
	if len(rev) < minAbbreviated || !isHex(rev) {
		return answer{}, fmt.Errorf("the repository has no tag and no branch %q", termtext.Short(rev, 100))
	}
	commit, err := g.abbreviated(ctx, rev)
	return answer{Is: commit}, err
}

// remoteRefs maps refs to objects. For a tag object, the ref with ^{} appended maps to the commit.
type remoteRefs map[string]string

func (r remoteRefs) commit(name string) string { return cmp.Or(r[name+"^{}"], r[name]) }

// remoteRefs asks the server for its refs, or those of some names.
func (g *gitProgram) remoteRefs(ctx context.Context, names ...string) (remoteRefs, error) {
	out, err := g.output(ctx, slices.Concat([]string{"ls-remote", "--", g.url}, names)...)
	if err != nil {
		return nil, err
	}
	refs := remoteRefs{}
	for line := range strings.SplitSeq(out, "\n") {
		if id, name, found := strings.Cut(line, "\t"); found && isHex(id) {
			refs[name] = id
		}
	}
	return refs, nil
}

// abbreviated finds the commit whose name begins with rev among the tips of branches and tags, or in the whole history.
func (g *gitProgram) abbreviated(ctx context.Context, rev string) (string, error) {
	refs, err := g.remoteRefs(ctx)
	if err != nil {
		return "", err
	}
	found := map[string]bool{}
	for name := range refs {
		if id := refs.commit(strings.TrimSuffix(name, "^{}")); strings.HasPrefix(id, rev) {
			found[id] = true
		}
	}
	if len(found) == 1 {
		return slices.Collect(maps.Keys(found))[0], nil
	}
	if err := g.fetch(ctx, "--filter=tree:0", "--", g.url, allBranches, allTags); err != nil {
		return "", err
	}
	id, err := g.output(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", rev+"^{commit}")
	if err != nil {
		if failed, ok := errors.AsType[*gitError](err); ok && failed.stderr == "" {
			err = fmt.Errorf("the repository has no tag, no branch and no commit %s", rev)
		}
		return "", err
	}
	return strings.TrimSpace(id), nil
}

// The refspecs of everything in a repository.
const (
	allBranches = "+refs/heads/*:refs/fetched/heads/*"
	allTags     = "+refs/tags/*:refs/fetched/tags/*"
)

// fetch fetches with args: options, the address and refs.
func (g *gitProgram) fetch(ctx context.Context, args ...string) error {
	_, err := g.output(ctx, append([]string{
		"fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-maintenance",
	}, args...)...)
	return err
}

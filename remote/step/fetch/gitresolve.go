package fetch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// minAbbreviated is the least number of digits of an abbreviated commit.
const minAbbreviated = 7

// resolve returns the commit that rev stands for in repo now, and the ref that it names. It may use an answer that
// another job received after this Fetch began.
func (f *fetcher) resolve(ctx context.Context, repo *repository, rev string) (commit, ref string, err error) {
	if err := lang.CheckRevision(rev); err != nil {
		return "", "", err
	}
	a, err := f.ask(ctx, keyOf("ref", repo.location, rev), func() (answer, error) {
		commit, ref, err := f.lookUp(ctx, repo, rev)
		return answer{Is: commit, Ref: ref}, err
	})
	return a.Is, a.Ref, err
}

// ask returns the answer of question, or an answer that another process received after this Fetch began. Of all
// processes that want the answer one calls question, and the others wait.
func (f *fetcher) ask(ctx context.Context, key string, question func() (answer, error)) (a answer, err error) {
	unlock, err := f.cache.lock(ctx, key, func() bool {
		return f.cache.read(answerDir, key, &a) && a.within(f.began)
	})
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

// lookUp asks the server of repo for the commit of rev: a tag, a branch, another ref or an abbreviated commit, in this
// order.
func (f *fetcher) lookUp(ctx context.Context, repo *repository, rev string) (commit, ref string, err error) {
	tmp, err := f.cache.scratch()
	if err != nil {
		return "", "", err
	}
	defer tmp.remove()
	g, err := repo.program(tmp, "")
	if err != nil {
		return "", "", err
	}
	g.limit = f.limits.total
	names := []string{"refs/tags/" + rev, "refs/heads/" + rev}
	if rev == "HEAD" || strings.HasPrefix(rev, "refs/") {
		names = append(names, rev)
	}
	args := []string{"ls-remote", "--", repo.url}
	for _, name := range names {
		args = append(args, name, name+"^{}")
	}
	refs, err := g.remoteRefs(ctx, args...)
	if err != nil {
		return "", "", err
	}
	for _, name := range names {
		if is := refs.commit(name); is != "" {
			return is, name, nil
		}
	}
	if len(rev) < minAbbreviated || !isHex(rev) {
		return "", "", fmt.Errorf("the repository has no tag and no branch %q", termtext.Short(rev, 100))
	}
	commit, err = g.abbreviated(ctx, repo, rev)
	return commit, "", err
}

// remoteRefs has the objects of refs. For a tag object, the name with ^{} after it has the commit.
type remoteRefs map[string]string

func (g *gitProgram) remoteRefs(ctx context.Context, args ...string) (remoteRefs, error) {
	out, err := g.output(ctx, args...)
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

func (r remoteRefs) commit(name string) string {
	if of := r[name+"^{}"]; of != "" {
		return of
	}
	return r[name]
}

// abbreviated finds the commit whose name begins with rev among the tips of branches and tags, or in all history.
func (g *gitProgram) abbreviated(ctx context.Context, repo *repository, rev string) (string, error) {
	refs, err := g.remoteRefs(ctx, "ls-remote", "--", repo.url)
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
	if err := g.fetch(ctx, repo.url, "--filter=tree:0", allBranches, allTags); err != nil {
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

// The refspecs of everything a repository has.
const (
	allBranches = "+refs/heads/*:refs/fetched/heads/*"
	allTags     = "+refs/tags/*:refs/fetched/tags/*"
)

// init makes the repository. format is the object format, sha256, or empty for sha1.
func (g *gitProgram) init(format string) error {
	config := "[core]\nbare = true\n"
	if format != "" {
		config += "repositoryformatversion = 1\n[extensions]\nobjectformat = " + format + "\n"
	}
	for _, dir := range []string{"", "objects", "refs"} {
		if err := os.Mkdir(filepath.Join(g.dir, dir), 0o700); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{"HEAD": "ref: refs/heads/none\n", "config": config} {
		if err := os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// fetch fetches from a repository, with args: options first and then refs.
func (g *gitProgram) fetch(ctx context.Context, from string, args ...string) error {
	command := []string{
		"fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-maintenance",
	}
	for len(args) > 0 && strings.HasPrefix(args[0], "--") {
		command, args = append(command, args[0]), args[1:]
	}
	_, err := g.output(ctx, slices.Concat(command, []string{"--", from}, args)...)
	return err
}

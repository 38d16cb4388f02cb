package actionmirror

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/subprocess"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Action is an action in the mirror.
type Action struct {
	// Uses is the reference.
	Uses string
	// Commit is the commit of its revision. To pin the action, a workflow names this commit in place of the revision.
	Commit string
}

// maxActions bounds the actions of one file, including those that its actions use.
const maxActions = 1000

// Uses returns the actions that a file names.
func Uses(name string, text []byte, format standalone.Format) ([]string, error) {
	if format == standalone.GitHub {
		w, err := action.ReadWorkflow(name, text)
		return w.Uses(), err
	}
	if base := filepath.Base(name); base == "action.yml" || base == "action.yaml" {
		return action.ManifestUses(name, text)
	}
	def, err := lang.ParseCalled(name, text)
	if err != nil {
		return nil, err
	}
	var uses []string
	var visit func(*pb.Definition)
	visit = func(def *pb.Definition) {
		for _, s := range def.GetSteps() {
			if s.GetReference().GetProtocol() == pb.Reference_action {
				uses = append(uses, lang.ActionText(s.GetReference()))
			}
			visit(s.GetDefinition())
		}
	}
	visit(def)
	return uses, nil
}

// Fill brings the actions in uses, and those that they use, into dir, which it makes if it is missing. They come from
// server, which is a URL such as https://github.com, or the directory of a mirror. For an action of the project, whose
// files are in project, it brings only the actions that it uses. It leaves out images, and actions of other servers. It
// calls tell with each action that is in dir. locked, if not nil, has the commits of actions by [action.LockKey]: it
// brings these.
func Fill(
	ctx context.Context, server, dir, project string, uses []string, locked map[string]string, tell func(Action),
) error {
	m := &mirror{server: strings.TrimSuffix(server, "/"), dir: dir, locked: locked}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	done := map[string]bool{}
	for len(uses) > 0 {
		text := uses[0]
		uses = uses[1:]
		if done[text] {
			continue
		}
		done[text] = true
		ref, err := lang.ParseAction(text)
		if err != nil {
			return fmt.Errorf("%.160q: %w", text, err)
		}
		if len(done) > maxActions {
			return fmt.Errorf("there are more than %d actions", maxActions)
		}
		if ref.GetRev() == "" && ref.GetUrl() == "" {
			own := strings.TrimPrefix(ref.GetPath(), lang.Self)
			nested, err := action.LocalUses(filepath.Join(project, filepath.FromSlash(own)), text)
			if err != nil {
				return err
			}
			uses = append(uses, nested...)
			continue
		}
		if !strings.Contains(ref.GetRepository(), "/") {
			continue // an image, or an action of another server
		}
		commit, nested, err := m.add(ctx, ref)
		if err != nil {
			return fmt.Errorf("bring the action %s: %w", text, err)
		}
		tell(Action{text, commit})
		uses = append(uses, nested...)
	}
	return nil
}

type mirror struct {
	server, dir string
	locked      map[string]string
}

// add brings the revision of an action, and returns its commit and the actions that it uses.
func (m *mirror) add(ctx context.Context, ref *pb.Reference) (commit string, uses []string, err error) {
	repo := filepath.Join(m.dir, filepath.FromSlash(ref.GetRepository()))
	if _, err := os.Stat(filepath.Join(repo, "objects")); err != nil {
		if err := os.MkdirAll(repo, 0o755); err != nil {
			return "", nil, err
		}
		if _, err := git(ctx, repo, "init", "--quiet", "--bare"); err != nil {
			return "", nil, err
		}
	}
	url, rev := m.server+"/"+ref.GetRepository(), ref.GetRev()
	if m.locked != nil && !action.IsCommit(rev) {
		if rev = m.locked[action.LockKey(ref.GetRepository()+"@"+rev)]; rev == "" {
			return "", nil, errors.New("it is not in actions.lock: run gh actions-lock")
		}
	}
	var failed error
	for _, spec := range []string{"refs/tags/" + rev, "refs/heads/" + rev, rev} {
		to := spec
		if spec == rev {
			to = "refs/commits/" + rev // git keeps a commit only if a ref leads to it
		}
		_, failed = git(ctx, repo, "fetch", "--quiet", "--no-tags", "--depth=1", "--", url, "+"+spec+":"+to)
		if failed == nil {
			commit, failed = git(ctx, repo, "rev-parse", "--verify", to+"^{commit}")
			break
		}
	}
	if failed != nil {
		return "", nil, failed
	}
	commit = strings.TrimSpace(commit)
	files := []string{path.Join(ref.GetPath(), "action.yml"), path.Join(ref.GetPath(), "action.yaml")}
	found, err := git(ctx, repo, append([]string{"ls-tree", "-z", "--name-only", commit, "--"}, files...)...)
	if err != nil {
		return "", nil, err
	}
	for _, file := range files {
		if !slices.Contains(strings.Split(found, "\x00"), file) {
			continue
		}
		text, err := git(ctx, repo, "cat-file", "blob", commit+":"+file)
		if err != nil {
			return "", nil, err
		}
		uses, err := action.ManifestUses(lang.Describe(ref)+"/"+path.Base(file), []byte(text))
		for i, of := range uses {
			if dir, isOwn := strings.CutPrefix(of, lang.Self); isOwn {
				uses[i] = ref.GetRepository() + "/" + dir + "@" + ref.GetRev()
			}
		}
		return commit, uses, err
	}
	return commit, nil, nil // it has only a Dockerfile
}

// limit bounds a git command: a download from a slow server, and a text that is longer than that of an action.
var limit = subprocess.Limit{Time: time.Hour, Bytes: 2 * lang.MaxText}

// git runs git in a bare repository, and returns its output.
func git(ctx context.Context, repo string, args ...string) (string, error) {
	out, err := subprocess.Output(ctx, append([]string{
		"env", "GIT_TERMINAL_PROMPT=0", "git", "-c", "core.hooksPath=/dev/null", "-c", "http.lowSpeedLimit=1",
		"-c", "http.lowSpeedTime=60", "--git-dir", repo,
	}, args...), limit)
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return string(out), nil
}

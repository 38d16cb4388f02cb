package action

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Config says how actions run.
type Config struct {
	// Node is the program that runs actions for node. If empty, the tool cache and PATH are searched.
	Node string
	// Docker is the program that runs actions for docker. If empty, docker or, if that is missing, podman.
	Docker string
	// DockerSocket gives docker actions the socket of the docker daemon. With it they control the machine.
	DockerSocket bool
	// Base is a mirror of github.com: a URL, or a directory with a directory for each owner. If empty, actions come
	// from github.com.
	Base string
	// RequirePinned refuses actions whose revision is not a full commit.
	RequirePinned bool
}

// setServices adds the variables by which the clients find the services. Only actions get them, no script, as on
// GitHub.
func setServices(s engine.Services, env map[string]string) {
	if s.URL == "" {
		return
	}
	for _, name := range []string{"ACTIONS_RUNTIME_URL", "ACTIONS_RESULTS_URL", "ACTIONS_CACHE_URL"} {
		env[name] = s.URL + "/"
	}
	env["ACTIONS_RUNTIME_TOKEN"] = s.Token
	if s.Server == "" {
		env["ACTIONS_CACHE_SERVICE_V2"] = "true"
		return
	}
	env["ACTIONS_RUNTIME_URL"], env["ACTIONS_RESULTS_URL"] = s.Server+"/api/actions_pipeline/", s.Server
}

// Mirrors returns the Mirrors of a [fetch.Store] that gets actions from Base.
func (c *Config) Mirrors() (map[string]string, error) {
	if c.Base == "" {
		return nil, nil
	}
	base := c.Base
	if rest, ok := strings.CutPrefix(base, "file://"); ok {
		base = rest
	}
	if !strings.Contains(base, "://") {
		dir, err := filepath.Abs(base)
		if err == nil {
			_, err = os.Stat(dir)
		}
		if err != nil {
			return nil, fmt.Errorf("find the actions (--actions-base): %w", err)
		}
		base = dir
	} else if !strings.HasPrefix(base, "https://") && !strings.HasPrefix(base, "http://") {
		return nil, fmt.Errorf("find the actions (--actions-base): %.160q is neither a directory nor an https:// URL", c.Base)
	}
	return map[string]string{githubServer + "/": strings.TrimSuffix(base, "/") + "/"}, nil
}

// New returns a function that makes the [engine.Language] of a job.
func New(cfg Config) func() engine.Language {
	return func() engine.Language { return &language{cfg: cfg} }
}

// language runs the actions of a job.
type language struct {
	cfg   Config
	posts []*step         // with post stages, in lists of the engine's own language
	ready bool            // the directories of the job exist
	asked map[string]bool // programs whose version was asked for
}

// Run implements [engine.Language].
func (g *language) Run(ctx context.Context, call *engine.Call) engine.Result {
	empty := expression.Object(nil)
	s := &session{
		language: g, call: call, vars: call.Variables(), matrix: empty, needs: empty, strategy: empty,
		global: map[string]string{},
	}
	if err := s.open(); err != nil {
		return engine.Failed(err)
	}
	if call.Reference == nil {
		return s.runJob(ctx)
	}
	o := s.runCall(ctx)
	g.posts = append(g.posts, s.posts...)
	return o
}

// Finish implements [engine.Language].
func (g *language) Finish(ctx context.Context) *engine.StepResult {
	posts := g.posts
	g.posts = nil
	return runPosts(ctx, posts)
}

// loaded is an action with its description.
type loaded struct {
	*manifest
	ref       *pb.Reference
	dir, root string               // root is the directory that the action must not leave, or empty
	component *component.Component // nil unless the action was fetched
}

// name returns the reference of the action for people.
func (a *loaded) name() string { return lang.Describe(a.ref) }

// githubServer is the server of actions that are named by their repository only.
const githubServer = "https://github.com"

// load finds the action of ref. locate is [engine.Call.Locate] for a local action.
func (s *session) load(
	ctx context.Context, ref *pb.Reference, locate func(path string) (dir, root string, err error),
) (*loaded, error) {
	a := &loaded{ref: ref}
	var err error
	switch {
	case strings.HasPrefix(ref.GetUrl(), "docker://"):
		a.manifest = &manifest{using: "docker", image: ref.GetUrl()}
		return a, nil
	case ref.GetRev() == "":
		if a.dir, a.root, err = locate(ref.GetPath()); err == nil {
			a.manifest, err = readManifest(s.call.Open, a.dir, ref.GetPath())
		}
		return a, err
	}
	url, rev := ref.GetUrl(), ref.GetRev()
	if s.locked != nil && url == "" && !IsCommit(rev) {
		if rev, _ = s.locked[LockKey(ref.GetRepository()+"@"+rev)].(string); rev == "" {
			return nil, fmt.Errorf("the action %s is not in actions.lock: run gh actions-lock", a.name())
		}
	}
	if s.cfg.RequirePinned && !IsCommit(rev) {
		return nil, fmt.Errorf("the action %s is not pinned: write the full commit in place of %.64q, or leave out "+
			"--require-pinned", a.name(), rev)
	}
	switch {
	case url != "":
	case !strings.Contains(ref.GetRepository(), "/"):
		return nil, fmt.Errorf("the action %s has no owner: write owner/repository@revision", a.name())
	default:
		url = cmp.Or(s.server, githubServer) + "/" + ref.GetRepository()
	}
	a.component, err = s.call.Fetch(ctx, &pb.Reference{Protocol: pb.Reference_git, Url: url, Rev: rev})
	if err != nil {
		from := ""
		if s.cfg.Base != "" {
			from = " from " + lang.WithoutUserinfo(s.cfg.Base)
		}
		return nil, fmt.Errorf("fetch the action %s%s: %w", a.name(), from, err)
	}
	a.root, a.dir = a.component.Root, filepath.Join(a.component.Root, filepath.FromSlash(ref.GetPath()))
	a.manifest, err = readManifest(os.OpenFile, a.dir, a.name())
	return a, err
}

// LockKey returns the key of a reference owner/name@rev among locked commits: the case of a name does not count.
func LockKey(reference string) string {
	name, rev, _ := strings.Cut(reference, "@")
	return strings.ToLower(name) + "@" + rev
}

// IsCommit reports whether a revision is the full name of a commit.
func IsCommit(rev string) bool {
	return (len(rev) == 40 || len(rev) == 64) && strings.Trim(strings.ToLower(rev), "0123456789abcdef") == ""
}

// found describes the action for a trace. names are the names of its parts.
func (a *loaded) found(names []string) engine.Found {
	def := &pb.Definition{Type: pb.DefinitionType_steps}
	for _, name := range names {
		def.Steps = append(def.Steps, &pb.Step{Name: name})
	}
	f := engine.Found{Definition: def, Dir: a.dir, Root: a.root, File: a.file, Text: a.text}
	if a.component != nil {
		f.Source, f.Cached = &a.component.Source, a.component.Cached
	}
	return f
}

// parts returns the names of the stages of an action that has more than one stage.
func (a *loaded) parts() []string {
	if a.pre == "" && a.post == "" {
		return nil
	}
	names := []string{"pre", "main", "post"}
	if a.pre == "" {
		names = names[1:]
	}
	if a.post == "" {
		names = names[:len(names)-1]
	}
	return names
}

// newResults returns results for parts of res.
func newResults(res *engine.StepResult, names []string) []engine.StepResult {
	list := make([]engine.StepResult, len(names))
	for i, name := range names {
		list[i] = engine.StepResult{Name: name, Path: append(slices.Clip(res.Path), name), Status: engine.Skipped}
	}
	return list
}

// runCall runs an action of a list in the engine's language.
func (s *session) runCall(ctx context.Context) engine.Result {
	c := s.call
	top := &list{session: s, steps: map[string]*state{}, env: map[string]string{}}
	a, err := s.load(ctx, c.Reference, c.Locate)
	if err != nil {
		return engine.Failed(err)
	}
	spec := &step{loaded: a, saved: map[string]string{}}
	for _, name := range sortedkeys.Of(c.Inputs) {
		spec.with = append(spec.with, setting{name: name, text: c.Inputs[name].Text()})
	}
	x := &running{list: top, spec: spec, res: c.Result, literal: true, outputs: map[string]string{}}
	o := x.runAction(ctx)
	s.export(c.Result)
	return o
}

// export makes exports from the variables and directories that the action wrote to its files.
func (s *session) export(res *engine.StepResult) {
	res.Exports = nil
	set := func(name, value string) {
		v, err := newValue(value)
		if err == nil {
			err = lang.CheckVariable(name, value)
		}
		if err != nil {
			addWarning(res, fmt.Sprintf("the variable %.64q is not passed on: %v", name, err))
			return
		}
		if res.Exports == nil {
			res.Exports = values{}
		}
		res.Exports[name] = v
	}
	for name, value := range s.global {
		set(name, value)
	}
	if len(s.paths) > 0 {
		set("PATH", s.environ()["PATH"])
	}
}

// Inputs of the built-in step for jobs.
const (
	inputWorkflow = "workflow"
	inputJob      = "job"
	inputMatrix   = "matrix"
	inputInputs   = "inputs"
	inputFile     = "file" // name of the text in errors

	inputRepository  = "repository"
	inputLocked      = "locked"
	inputInContainer = "in_container"
	inputInProject   = "in_project"

	inputNeeds      = "needs"
	inputStrategy   = "strategy"
	inputInWorkflow = "in_workflow"

	inputActions = "actions"
	inputMarks   = "marks"
)

// runJob runs the steps of a workflow's job.
func (s *session) runJob(ctx context.Context) engine.Result {
	c := s.call
	file := c.Inputs[inputFile].Text()
	j, err := readJob(file, []byte(c.Inputs[inputWorkflow].Text()), c.Inputs[inputJob].Text())
	if err != nil {
		return engine.Failed(err)
	}
	s.github["workflow"] = expression.String(cmp.Or(s.variable(callerVariable), j.workflow))
	s.github["job"] = expression.String(j.Name)
	s.inProject, s.repository = c.Inputs[inputInProject].Truthy(), c.Inputs[inputRepository].Text()
	s.server = c.Inputs[inputActions].Text()
	if s.marks = c.Inputs[inputMarks].Text(); s.marks != "" {
		c.Place.Stderr = c.Place.Stdout // so that the marks stand between the output of the steps
	}
	if locked, _ := c.Inputs[inputLocked].Any().(map[string]any); len(locked) > 0 {
		s.locked = locked
	}
	object := func(input string) expression.Value {
		v, _ := c.Inputs[input].Any().(map[string]any)
		return expression.New(v)
	}
	s.matrix, s.needs, s.strategy = object(inputMatrix), object(inputNeeds), object(inputStrategy)
	if !c.Inputs[inputInWorkflow].Truthy() {
		hasMatrix, inContainer := c.Inputs[inputMatrix].Truthy(), c.Inputs[inputInContainer].Truthy()
		if err := j.writeNotes(c.Place.Stderr, hasMatrix, inContainer); err != nil {
			return engine.Failed(err)
		}
	}
	l := &list{
		session: s, specs: j.steps, steps: map[string]*state{}, env: map[string]string{}, shell: j.shell, dir: j.dir,
		file: file, late: c.Stopped(), inputs: object(inputInputs),
	}
	s.top = l
	for _, e := range j.env { // an entry can use those before it
		set, err := l.settings([]setting{e}, "env")
		if err != nil {
			return engine.Failed(err)
		}
		maps.Copy(s.global, set)
	}
	if err := c.List(len(j.steps)); err != nil {
		return engine.Failed(err)
	}
	c.Result.Steps = newResults(c.Result, l.names())
	c.Found(c.Result, engine.Found{Definition: definitionOf(l.names()), Builtin: lang.GitHubJobStep})
	early, err := l.prepare(ctx, c.Result.Steps)
	if err != nil {
		return engine.Failed(err)
	}
	o := l.run(ctx, c.Result.Steps)
	if early.Status == engine.Failure {
		o = early
	}
	if failed := runPosts(ctx, s.posts); failed != nil && o.Status == engine.Success {
		o = engine.Result{Status: engine.Failure, ExitCode: failed.ExitCode, Message: failed.Message, System: failed.System}
	}
	outputs, err := l.outputs(j.outputs)
	c.Result.Outputs = outputs
	if err != nil && o.Status == engine.Success {
		o = engine.Failed(err)
	}
	return o
}

// definitionOf returns a definition with steps of these names, for a trace.
func definitionOf(names []string) *pb.Definition {
	return (&loaded{manifest: &manifest{}}).found(names).Definition
}

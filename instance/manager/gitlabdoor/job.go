package gitlabdoor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// payload is the description of a job by the server, the answer to POST jobs/request of its API, version 4, as far as
// it is used.
type payload struct {
	ID    int64  `json:"id"`
	Token string `json:"token"`
	Info  struct {
		Name        string `json:"name"`
		Stage       string `json:"stage"`
		Pipeline    int64  `json:"pipeline_id"`
		ProjectPath string `json:"project_full_path"`
		ProjectName string `json:"project_name"`
	} `json:"job_info"`
	Git struct {
		URL   string `json:"repo_url"`
		SHA   string `json:"sha"`
		Depth int    `json:"depth"`
		// Refspecs are the references that the job has beside its commit.
		Refspecs []string `json:"refspecs"`
	} `json:"git_info"`
	Runner struct {
		Timeout int `json:"timeout"` // seconds
	} `json:"runner_info"`
	Variables    []variable                 `json:"variables"`
	Steps        []script                   `json:"steps"`
	Image        *image                     `json:"image"`
	Services     []*image                   `json:"services"`
	Artifacts    []artifact                 `json:"artifacts"`
	Caches       []cache                    `json:"cache"`
	Dependencies []dependency               `json:"dependencies"`
	Hooks        []script                   `json:"hooks"`
	Secrets      map[string]json.RawMessage `json:"secrets"`
	Run          string                     `json:"run"` // a list of steps in JSON
	Features     struct {
		Sections       bool     `json:"trace_sections"`
		MaskPrefixes   []string `json:"token_mask_prefixes"`
		FailureReasons []string `json:"failure_reasons"`
	} `json:"features"`
}

// variable is a variable of a job. A later one of a name replaces an earlier one.
type variable struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	File   bool   `json:"file"`
	Masked bool   `json:"masked"`
	Raw    bool   `json:"raw"` // $ has no meaning in the value
}

// script is one of a job, or a hook.
type script struct {
	Name   string   `json:"name"`
	Script []string `json:"script"`
	When   string   `json:"when"`
}

// image is that of the job or of a service.
type image struct {
	Name       string     `json:"name"`
	Alias      string     `json:"alias"`
	Command    []string   `json:"command"`
	Entrypoint []string   `json:"entrypoint"`
	Variables  []variable `json:"variables"`
	PullPolicy []string   `json:"pull_policy"`
	Options    struct {
		Docker struct {
			Platform string `json:"platform"`
			User     any    `json:"user"` // a text or a number
		} `json:"docker"`
	} `json:"executor_opts"`
}

// artifact describes files that are uploaded.
type artifact struct {
	Name      string   `json:"name"`
	Untracked bool     `json:"untracked"`
	Paths     []string `json:"paths"`
	Exclude   []string `json:"exclude"`
	When      string   `json:"when"`
	Type      string   `json:"artifact_type"`
	Format    string   `json:"artifact_format"`
	ExpireIn  string   `json:"expire_in"`
}

// cache describes files that later jobs find.
type cache struct {
	Key       string   `json:"key"`
	Untracked bool     `json:"untracked"`
	Policy    string   `json:"policy"`
	Paths     []string `json:"paths"`
	When      string   `json:"when"`
	Fallback  []string `json:"fallback_keys"`
}

// dependency is a job whose artifacts this one gets.
type dependency struct {
	ID    int64  `json:"id"`
	Token string `json:"token"`
	Name  string `json:"name"`
	File  *struct {
		Name string `json:"filename"`
	} `json:"artifacts_file"`
}

// jobName is that of the only job of a pipeline. What GitLab calls it is in the name of the pipeline, and in
// CI_JOB_NAME.
const jobName = "job"

const (
	// maxName bounds the name of a pipeline, and maxVariables the variables of a job.
	maxName, maxVariables = 300, 2000
)

// The variables of a job that say how its sources are fetched.
const (
	strategyVariable                       = "GIT_STRATEGY"
	depthVariable, submodulesVariable      = "GIT_DEPTH", "GIT_SUBMODULE_STRATEGY"
	clonePathVariable, projectDirVariable  = "GIT_CLONE_PATH", "CI_PROJECT_DIR"
	tokenVariable                          = "CI_JOB_TOKEN"
	dependencyToken, preSources, afterHook = "STEPMUX_DEPENDENCY_", "pre_get_sources_script", "post_get_sources_script"
)

// step is a step of the generated text.
type step struct {
	Name   string         `json:"name"`
	Step   string         `json:"step"`
	Inputs map[string]any `json:"inputs,omitempty"`
	When   string         `json:"when,omitempty"`
	// Env is the environment of the step alone.
	Env map[string]string `json:"env,omitempty"`

	in section // of the trace
}

// origin is where a job comes from, and the runner that has it.
type origin struct {
	Name, URL string            // of the server
	Marks     string            // the token of the marks in the log
	Labels    map[string]string // that the VM must have
	runnerFacts
}

// pipeline returns the request for a pipeline of one job, and the shape of its trace. An error is about the job: it
// cannot run, and the text says why; the shape is that of a job without steps.
//
// The text of the pipeline is a .gitlab-ci.yml, in JSON. The manager brings its caches, and its containers. Sources
// come by the step git/clone, artifacts of other jobs by artifacts/download, and its own ones go by artifacts/upload.
func (p *payload) pipeline(from origin) (*pb.SubmitPipelineRequest, *shape, error) {
	if p.Image.name() == "" && from.Image != "" {
		p.Image = &image{Name: from.Image}
	}
	vars := p.variables(from.runnerFacts)
	look := p.shape(vars, from.Marks)
	req, steps, err := p.request(from, vars)
	if err == nil {
		look.steps = steps
	}
	return req, look, err
}

// request returns the request, and the sections of the steps of the job.
func (p *payload) request(from origin, vars *variables) (_ *pb.SubmitPipelineRequest, steps []section, err error) {
	if len(p.Secrets) > 0 {
		return nil, nil, errors.New("the job has secrets of a vault, which are not fetched here: give them as masked " +
			"variables")
	}
	if len(p.Variables) > maxVariables {
		return nil, nil, fmt.Errorf("the job has %d variables; at most %d can be given", len(p.Variables), maxVariables)
	}
	job := map[string]any{}
	if p.Info.Stage != "" {
		job["stage"] = p.Info.Stage
	}
	setup, err := p.sources(vars)
	if err != nil {
		return nil, nil, err
	}
	downloads, tokens := p.downloads(from.URL)
	setup = append(setup, downloads...)
	main, teardown, err := p.scripts(job)
	if err != nil {
		return nil, nil, err
	}
	teardown = append(teardown, p.uploads(vars, from.URL)...)
	if _, has := vars.byID[authorities]; has {
		trust(setup)
		trust(teardown)
	}
	job["setup"], job["teardown"] = setup, teardown
	if caches := p.caches(); len(caches) > 0 {
		job["cache"] = caches
	}
	p.container(job)
	text := map[string]any{jobName: job}
	if p.Info.Stage != "" {
		text["stages"] = []string{p.Info.Stage}
	}
	options := &stepmuxv1.Job{Variables: tokens, MaskPrefixes: p.maskPrefixes(vars)}
	if seconds := p.Runner.Timeout; seconds > 0 {
		options.Timeout = durationpb.New(time.Duration(min(seconds, maxSeconds)) * time.Second)
	}
	texts := map[string]any{}
	for _, v := range vars.list {
		if v.File || v.Masked || p.isSecret(v.Value) {
			options.Variables = append(options.Variables, &stepmuxv1.Variable{
				Key: v.Key, Value: vars.value(v), File: v.File, Masked: v.Masked || !v.File,
			})
			continue
		}
		texts[v.Key] = map[string]any{"value": v.Value, "expand": !v.Raw}
	}
	job["variables"] = texts
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(text); err != nil {
		return nil, nil, fmt.Errorf("the job: %w", err)
	}
	name := fmt.Sprintf("%s/%s#%d/%s", from.Name, p.Info.ProjectPath, p.Info.Pipeline, p.Info.Name)
	name = termtext.Cut(termtext.Line(name), maxName) // it is in lists and messages
	return &pb.SubmitPipelineRequest{
		Source: &pb.PipelineSource{
			Name: name, Text: out.Bytes(), Format: "gitlab-ci", Directory: p.Info.ProjectName, Marks: from.Marks,
		},
		Options: options, Repository: from.Name + "/" + p.Info.ProjectPath, InImage: p.Image.name() != "",
		Labels: maps.Clone(from.Labels),
	}, slices.Concat(sectionsOf(setup), main, sectionsOf(teardown)), nil
}

// scripts adds the scripts of the job, or its steps, and returns their sections, and steps that come after them.
func (p *payload) scripts(job map[string]any) (main []section, teardown []step, err error) {
	teardown = []step{}
	if p.Run != "" {
		list, err := p.steps()
		job["run"] = list
		return slices.Repeat([]section{stepSection("run")}, len(list)), teardown, err
	}
	for _, s := range p.Steps {
		switch {
		case s.Name != scriptKey && s.Name != afterScriptKey: // release, and those of multi_build_steps
			after := scripted(s)
			after.in = stepSection(strings.ToLower(s.Name))
			teardown = append(teardown, after)
		case len(s.Script) == 0:
		default:
			job[s.Name] = s.Script
		}
	}
	if job[scriptKey] == nil {
		return nil, nil, errors.New("the job has no script")
	}
	main = []section{stepSection(scriptKey)}
	if job[afterScriptKey] != nil {
		main = append(main, afterSection)
	}
	return main, teardown, nil
}

const scriptKey, afterScriptKey = "script", "after_script"

// sectionsOf returns the sections of steps.
func sectionsOf(steps []step) (all []section) {
	for _, s := range steps {
		all = append(all, s.in)
	}
	return all
}

// maxSeconds bounds the timeout of a job: a year.
const maxSeconds = 365 * 24 * 60 * 60

// isSecret reports whether a value has a secret that the server wants masked by how it begins.
func (p *payload) isSecret(value string) bool {
	return slices.ContainsFunc(p.Features.MaskPrefixes, func(prefix string) bool {
		return len(prefix) >= 3 && strings.HasPrefix(value, prefix)
	})
}

// variables are those of a job, each name once.
type variables struct {
	list []variable
	byID map[string]int
}

var variableNames = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// variables returns the variables of the job, with those that a runner adds. A name that no shell takes is left out, as
// a shell does.
func (p *payload) variables(runner runnerFacts) *variables {
	vars := &variables{byID: map[string]int{}}
	before, after := p.added(runner)
	for _, v := range slices.Concat(before, p.Variables, after) {
		v.Value = strings.ReplaceAll(strings.ToValidUTF8(v.Value, "\uFFFD"), "\x00", "")
		i, known := vars.byID[v.Key]
		switch {
		case !variableNames.MatchString(v.Key) || v.Key == projectDirVariable:
		case known:
			vars.list[i] = v
		default:
			vars.byID[v.Key] = len(vars.list)
			vars.list = append(vars.list, v)
		}
	}
	return vars
}

// get returns the value of a variable, or "".
func (v *variables) get(name string) string {
	if i, known := v.byID[name]; known {
		return v.value(v.list[i])
	}
	return ""
}

// value returns the value of a variable, with those in it.
func (v *variables) value(of variable) string {
	if of.Raw {
		return of.Value
	}
	return v.expand(of.Value)
}

// reference is a variable in a text: $NAME, ${NAME} or $$.
var reference = regexp.MustCompile(`\$(?:\$|\{[a-zA-Z_][a-zA-Z0-9_]*\}|[a-zA-Z_][a-zA-Z0-9_]*)`)

// maxExpanded bounds a text with the values of variables, in bytes.
const maxExpanded = 128 << 10

// expand puts the values of variables into a text, once: those in the values stay. The directory of the project is ".",
// since paths are relative to it, and a variable that is not there is empty.
func (v *variables) expand(text string) string {
	size := len(text)
	return reference.ReplaceAllStringFunc(text, func(ref string) string {
		name := strings.Trim(ref, "${}")
		value := ""
		switch i, known := v.byID[name]; {
		case ref == "$$":
			return "$"
		case name == projectDirVariable:
			return "."
		case known:
			value = v.list[i].Value
		}
		if size += len(value); size > maxExpanded {
			return ""
		}
		return value
	})
}

// expandAll expands a list.
func (v *variables) expandAll(all []string) []string {
	expanded := []string{}
	for _, text := range all {
		expanded = append(expanded, lang.Escape(v.expand(text)))
	}
	return expanded
}

// scripted returns a step that runs a script as the script of a job is run.
func scripted(s script) step {
	lines := []string{}
	for _, line := range s.Script {
		lines = append(lines, lang.Escape(line))
	}
	made := step{
		Name: stepName(s.Name), Step: "builtin://" + lang.ManagerScriptStep, Inputs: map[string]any{"script": lines},
	}
	made.When = whenOf(s.When)
	return made
}

// whenOf returns the key when of a step. Without one, those of teardown would run in any case.
func whenOf(when string) string {
	if when == lang.Always || when == onFailure {
		return when
	}
	return onSuccess
}

const onSuccess, onFailure = "on_success", "on_failure"

var notInNames = regexp.MustCompile(`[^A-Za-z0-9_]+`)

// stepName returns a name for a step.
func stepName(name string) string { return "job_" + notInNames.ReplaceAllString(name, "_") }

// sources returns the steps that fetch the sources of the job, with their hooks.
func (p *payload) sources(vars *variables) (all []step, err error) {
	strategy := vars.get(strategyVariable)
	switch strategy {
	case "none", "empty":
		return nil, nil
	case "", "fetch", "clone": // the directory of a build is new
	default:
		return nil, fmt.Errorf("the variable %s is %.40q: write fetch, clone, none or empty", strategyVariable, strategy)
	}
	if vars.get(clonePathVariable) != "" {
		return nil, fmt.Errorf("the variable %s has no effect here: a job has its directory", clonePathVariable)
	}
	at, err := url.Parse(p.Git.URL)
	if err != nil || at.Host == "" {
		return nil, errors.New("the server sent no URL of the repository")
	}
	at.User = nil
	inputs := map[string]any{"url": lang.Escape(at.String()), "revision": p.Git.SHA, "depth": p.Git.Depth}
	if len(p.Git.Refspecs) > 0 {
		inputs["refspecs"] = p.Git.Refspecs
	}
	if text := vars.get(depthVariable); text != "" {
		depth, err := strconv.Atoi(text)
		if err != nil || depth < 0 {
			return nil, fmt.Errorf("the variable %s is %.40q: write a number", depthVariable, text)
		}
		inputs["depth"] = depth
	}
	switch how := vars.get(submodulesVariable); how {
	case "", "none":
	case "normal", "recursive":
		inputs["submodules"] = how
	default:
		return nil, fmt.Errorf("the variable %s is %.40q: write none, normal or recursive", submodulesVariable, how)
	}
	inputs["token"] = "${{ vars." + tokenVariable + " }}" // also if the host is another one than that of CI_SERVER_URL
	hook := func(name string) {
		for _, h := range p.Hooks {
			if h.Name == name && len(h.Script) > 0 {
				s := scripted(h)
				s.in = sourcesSection
				all = append(all, s)
			}
		}
	}
	hook(preSources)
	all = append(all, step{
		Name: "get_sources", Step: "builtin://" + lang.CloneStep, Inputs: inputs, When: onSuccess,
		in: sourcesSection,
	})
	hook(afterHook)
	return all, nil
}

// steps returns the steps of a job with run.
func (p *payload) steps() (list []any, err error) {
	decoder := json.NewDecoder(strings.NewReader(p.Run))
	decoder.UseNumber()
	if err := decoder.Decode(&list); err != nil {
		return nil, fmt.Errorf("the steps of the job (run) are no list in JSON: %w", err)
	}
	if len(p.Steps) > 0 {
		return nil, errors.New("the job has both run and scripts; the server may have one of them")
	}
	return list, nil
}

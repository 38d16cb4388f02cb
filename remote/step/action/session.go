package action

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/expr"
)

// values are outputs and exports.
type values = map[string]expr.Value

func newValue(text string) (expr.Value, error) { return expr.New(text) }

// newValues makes values of texts. Its error has the format failed, for the name of a text and what is wrong with it.
func newValues(texts map[string]string, failed string) (values, error) {
	made := values{}
	for name, text := range texts {
		v, err := newValue(text)
		if err != nil {
			return nil, fmt.Errorf(failed, name, err)
		}
		made[name] = v
	}
	return made, nil
}

// session runs one call of the language: an action, or a job of a workflow.
type session struct {
	*language
	call *engine.Call
	vars values // of the job
	top  *list  // of the job's steps
	// matrix, needs and strategy are contexts of a workflow's job.
	matrix, needs, strategy expression.Value
	// inProject says that the work directory has the user's project, which actions/checkout must not replace.
	inProject bool
	// repository is owner/name@revision of the workflow's file. It is empty for a file of the project.
	repository string
	// locked are commits of actions by their LockKey. If it is not nil, actions have these, and others are refused.
	locked map[string]any
	// server is where actions come from that name no server, in place of github.com. It may be empty.
	server string
	// marks is the token of the lines in the output that tell where each step of the job begins and ends. If empty, no
	// line does.
	marks string

	github map[string]expression.Value // the context github
	global map[string]string           // variables that steps have set; they override those of the call
	paths  []string                    // directories that steps have put before PATH, the first one first
	posts  []*step                     // steps whose post stages wait for the end of the job

	matchers []*matcher
	stopped  string // the token that ends stop-commands; empty if commands are carried out
}

// Names of the directories and of the file of a job.
const (
	baseDir   = "actions"
	tempDir   = baseDir + "/temp"
	homeDir   = baseDir + "/home"
	eventFile = baseDir + "/event.json"
)

// The directories of a job.
func (s *session) base() string { return s.call.Path(baseDir) }
func (s *session) temp() string { return s.call.Path(tempDir) }
func (s *session) home() string { return s.call.Path(homeDir) }
func (s *session) work() string { return s.call.Place.WorkDir }

// open makes the directories of the job and the github context.
func (s *session) open() error {
	if !s.ready {
		for _, dir := range []string{baseDir, tempDir, homeDir} {
			if err := s.call.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("create a directory for actions: %w", err)
			}
		}
	}
	s.github = s.githubContext()
	if s.ready {
		return nil
	}
	s.ready = true
	event := expression.Object(map[string]expression.Value{"v": s.github["event"]})
	text, err := expression.Evaluate("toJSON(o.v)", expression.Scope{Values: map[string]expression.Value{"o": event}})
	if err != nil {
		return fmt.Errorf("write event.json: %w", err)
	}
	return s.call.WriteFile(eventFile, text.Text())
}

// variable returns a job variable, or "", and reports that it was read.
func (s *session) variable(name string) string {
	v, there := s.vars[name]
	if !there {
		return ""
	}
	s.call.Reading(name)
	return v.Text()
}

// toolCache returns the directory in which actions keep tools.
func (s *session) toolCache() string {
	for _, name := range []string{"RUNNER_TOOL_CACHE", "AGENT_TOOLSDIRECTORY"} {
		if dir := s.call.Env[name].Text(); filepath.IsAbs(dir) {
			return dir
		}
	}
	if home := s.call.Env["HOME"].Text(); filepath.IsAbs(home) {
		return filepath.Join(home, ".cache", "stepmux-tool-cache")
	}
	return filepath.Join(s.base(), "tools")
}

// environ returns the environment for steps: that of the call, the variables that steps have set, and overlays. Later
// ones override earlier ones.
func (s *session) environ(overlays ...map[string]string) map[string]string {
	env := make(map[string]string, len(s.call.Env)+len(s.global))
	for name, v := range s.call.Env {
		env[name] = v.Text()
	}
	maps.Copy(env, s.global)
	for _, o := range overlays {
		maps.Copy(env, o)
	}
	if len(s.paths) > 0 {
		env["PATH"] = strings.Trim(strings.Join(s.paths, ":")+":"+env["PATH"], ":")
	}
	return env
}

// maxPaths bounds the directories that steps put before PATH.
const maxPaths = 1000

// addPath puts a directory before PATH.
func (s *session) addPath(dir string) error {
	s.paths = slices.DeleteFunc(s.paths, func(p string) bool { return p == dir })
	if len(s.paths) == maxPaths {
		return fmt.Errorf("the steps put more than %d directories before PATH", maxPaths)
	}
	s.paths = append([]string{dir}, s.paths...)
	return nil
}

// isBlocked reports whether steps must not set the variable for later steps, because it makes node or git run any code.
func isBlocked(name string) bool {
	return name == "NODE_OPTIONS" || strings.HasPrefix(name, "GIT_") && strings.Contains(name, "CONFIG")
}

// ownVariables are variables that the runner sets, beside GITHUB_ and a key of githubVariables or one of fileKinds.
var ownVariables = strings.Fields(`
	GITHUB_ACTION GITHUB_ACTION_PATH GITHUB_ACTION_REF GITHUB_ACTION_REPOSITORY GITHUB_ACTIONS GITHUB_EVENT_PATH
	GITHUB_WORKSPACE RUNNER_ARCH RUNNER_DEBUG RUNNER_ENVIRONMENT RUNNER_NAME RUNNER_OS RUNNER_TEMP RUNNER_TOOL_CACHE
	RUNNER_WORKSPACE`)

// isOwn reports whether the runner sets the variable for each process.
func isOwn(name string) bool {
	key, isGitHub := strings.CutPrefix(name, "GITHUB_")
	lower := strings.ToLower(key)
	_, known := githubVariables[lower]
	known = known || slices.Contains(fileKinds, lower)
	return isGitHub && known && key == strings.ToUpper(key) || slices.Contains(ownVariables, name)
}

// setEnv sets a variable for later steps. The error says why that is not allowed.
func (s *session) setEnv(name, value string) error {
	switch {
	case isBlocked(strings.ToUpper(name)), s.call.UnsafeExport(name):
		return fmt.Errorf("can't store %.64q in GITHUB_ENV: it changes every later program; set it in env where it is needed",
			name)
	case isOwn(name):
		return fmt.Errorf("can't store %.64q in GITHUB_ENV: the runner sets this variable itself", name)
	case strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0):
		return fmt.Errorf("can't store %.64q in GITHUB_ENV: it has a NUL byte, or = in its name", name)
	}
	if _, there := s.global[name]; !there && len(s.global) >= maxEntries {
		return fmt.Errorf("can't store %.64q in GITHUB_ENV: there are more than %d variables", name, maxEntries)
	}
	s.global[name] = value
	return nil
}

// githubVariables maps keys of the context github to variables of GitLab. A variable GITHUB_<KEY> comes first.
var githubVariables = map[string]string{
	"repository": "CI_PROJECT_PATH", "repository_id": "CI_PROJECT_ID", "repository_owner": "CI_PROJECT_ROOT_NAMESPACE",
	"repository_owner_id": "CI_PROJECT_NAMESPACE_ID", "sha": "CI_COMMIT_SHA", "ref_name": "CI_COMMIT_REF_NAME",
	"event_name": "CI_PIPELINE_SOURCE", "actor": "GITLAB_USER_LOGIN", "actor_id": "GITLAB_USER_ID",
	"triggering_actor": "GITLAB_USER_LOGIN", "run_id": "CI_PIPELINE_ID", "run_number": "CI_PIPELINE_IID",
	"job": "CI_JOB_NAME", "head_ref": "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME",
	"base_ref": "CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "ref": "", "ref_type": "",
	"ref_protected": "CI_COMMIT_REF_PROTECTED",
	"workflow":      "CI_PIPELINE_NAME", "workflow_ref": "", "workflow_sha": "CI_COMMIT_SHA",
	"server_url": "", "api_url": "",
	"graphql_url": "", "retention_days": "", "run_attempt": "",
}

// eventOf returns the event of GitHub for the source of a GitLab pipeline.
func eventOf(source string) string {
	switch source {
	case "merge_request_event":
		return "pull_request"
	case "web", "api":
		return "workflow_dispatch"
	case "trigger":
		return "repository_dispatch"
	default:
		return source
	}
}

// githubContext makes the context github from the job's variables.
func (s *session) githubContext() map[string]expression.Value {
	text := githubTexts(s.variable)
	text["workspace"], text["event_path"] = s.work(), s.call.Path(eventFile)
	return githubValues(text, s.variable("GITHUB_EVENT"))
}

// githubValues returns the context github with these texts. The text of its event may be empty.
func githubValues(text map[string]string, event string) map[string]expression.Value {
	c := make(map[string]expression.Value, len(text)+2)
	for key, value := range text {
		c[key] = expression.String(value)
	}
	c["event"] = expression.Object(map[string]expression.Value{
		"repository": expression.Texts(map[string]string{"full_name": text["repository"]}),
		"ref":        c["ref"],
	})
	if v := fromJSON(event); v.Kind() != "Null" {
		c["event"] = v
	}
	return c
}

// fromJSON returns the value of a text in JSON, or null if it is not valid.
func fromJSON(text string) expression.Value {
	v, _ := expression.Evaluate("fromJSON(text)", expression.Scope{
		Values: map[string]expression.Value{"text": expression.String(text)},
	})
	return v
}

// githubTexts returns the texts of the context github. read returns a job variable.
func githubTexts(read func(string) string) map[string]string {
	text := map[string]string{
		"server_url": githubServer, "api_url": "https://api.github.com", "graphql_url": "https://api.github.com/graphql",
		"retention_days": "0", "run_attempt": "1", "run_id": "1", "run_number": "1", "event_name": "push",
		"ref_protected": "false", "job": "job",
	}
	if read("GITHUB_SERVER_URL") != "" { // another server may have none
		text["graphql_url"] = ""
	}
	for _, key := range sortedkeys.Of(githubVariables) {
		if own := read("GITHUB_" + strings.ToUpper(key)); own != "" {
			text[key] = own
		} else if name := githubVariables[key]; name != "" {
			if v := read(name); v != "" {
				text[key] = v
			} else if _, there := text[key]; !there {
				text[key] = ""
			}
		}
	}
	owner, _, _ := strings.Cut(text["repository"], "/")
	text["repository_owner"] = cmp.Or(text["repository_owner"], owner)
	text["event_name"] = eventOf(text["event_name"])
	if text["ref"] == "" {
		text["ref"], text["ref_type"] = ref(read, text["ref_name"])
	}
	if parts := strings.SplitN(text["ref"], "/", 3); len(parts) == 3 && parts[0] == "refs" { // refs/heads/main
		kind := "branch"
		if parts[1] == "tags" {
			kind = "tag"
		}
		text["ref_name"], text["ref_type"] = cmp.Or(text["ref_name"], parts[2]), cmp.Or(text["ref_type"], kind)
	}
	return text
}

// ref returns the full name of the job's ref, and its type.
func ref(read func(string) string, name string) (full, kind string) {
	switch {
	case read("CI_COMMIT_TAG") != "":
		return "refs/tags/" + read("CI_COMMIT_TAG"), "tag"
	case read("CI_MERGE_REQUEST_IID") != "":
		return "refs/merge-requests/" + read("CI_MERGE_REQUEST_IID") + "/head", "branch"
	case read("CI_COMMIT_BRANCH") != "":
		return "refs/heads/" + read("CI_COMMIT_BRANCH"), "branch"
	case name != "":
		return "refs/heads/" + name, "branch"
	default:
		return "", ""
	}
}

// architecture returns GitHub's name of the machine's architecture.
func architecture() string {
	switch runtime.GOARCH {
	case "amd64":
		return "X64"
	case "386":
		return "X86"
	default:
		return strings.ToUpper(runtime.GOARCH)
	}
}

// runner returns the context runner. As RUNNER_ variables it is also a part of the environment.
func (s *session) runner() map[string]string {
	r := map[string]string{
		"os": strings.ToUpper(runtime.GOOS[:1]) + runtime.GOOS[1:], "arch": architecture(), "name": "stepmux",
		"temp": s.temp(), "tool_cache": s.toolCache(), "workspace": filepath.Dir(s.work()), "environment": "self-hosted",
	}
	if s.debug() {
		r["debug"] = "1"
	}
	return r
}

// debug reports whether debug messages are shown.
func (s *session) debug() bool {
	return s.call.Env["RUNNER_DEBUG"].Text() == "1" || s.variable("ACTIONS_STEP_DEBUG") == "true"
}

package giteadoor

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/internal/yamltree"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// record is a task that this door has. With it another manager can go on.
type record struct {
	Task *Task `json:"task"`
	// Runner is the one to which the server has given the task: no other may report it.
	Runner Registration `json:"runner"`
	// Marks is the token of the marks in the log.
	Marks string `json:"marks"`
	// Refused is why the task cannot run, if that was found out when it came.
	Refused string `json:"refused,omitempty"`
	// Files are the workflows that the job calls, directly or by others, once they were fetched.
	Files []calledFile `json:"files,omitempty"`
	// Told are the builds of a job that calls a workflow, in the order in which their logs are reported.
	Told []toldBuild `json:"told,omitempty"`
}

// maxRecord bounds a record, in bytes: the store takes no larger ones.
const maxRecord = 4 << 20

// encode returns the record as it is kept. A task that is too large is refused.
func (r *record) encode() ([]byte, error) {
	text, err := json.Marshal(r)
	if err == nil && len(text) > maxRecord {
		r.Refused = fmt.Sprintf("the task, with its event and secrets, has %d bytes; at most %d can be kept", len(text),
			maxRecord)
		r.Task = &Task{ID: r.Task.ID}
		text, err = json.Marshal(r)
	}
	return text, err
}

// contextTexts are the texts of the context of a task that become variables of the job, GITHUB_ and the name.
var contextTexts = strings.Fields(`actor api_url base_ref event_name head_ref ref ref_name ref_protected ref_type
	repository repository_owner retention_days run_attempt run_id run_number server_url sha workflow`)

var variableNames = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// maxName bounds the name of a task's workflow, in bytes.
const maxName = 300

// maxVariables bounds the variables and secrets of a task.
const maxVariables = 1000

// pipeline returns the request for the pipeline of a task, and the shape of its job. An error is about the task: it
// cannot run.
func (r *record) pipeline(server string) (req *pb.SubmitPipelineRequest, s shape, err error) {
	t := r.Task
	if r.Refused != "" {
		return nil, s, errors.New(r.Refused)
	}
	name := fmt.Sprintf("%s/%s#%s/%s", server, t.text("repository"), t.text("run_number"), t.text("workflow"))
	name = termtext.Cut(termtext.Line(name), maxName) // it is in lists and messages
	source := &pb.PipelineSource{
		Name: name, Text: t.Workflow, Format: "github", Marks: r.Marks, Needs: map[string]*pb.EndedJob{},
		Directory: t.text("repository"), Actions: strings.TrimRight(t.text("gitea_default_actions_url"), "/"),
		Inputs: t.inputs(),
	}
	if !strings.HasPrefix(source.GetActions(), "https://") && !strings.HasPrefix(source.GetActions(), "http://") {
		source.Actions = "" // a word such as github, of an older server
	}
	for job, need := range t.Needs {
		source.Needs[job] = &pb.EndedJob{Result: words[need.Result], Outputs: need.Outputs}
	}
	set := func(name, value string) {
		if value != "" {
			source.Predefined = append(source.Predefined, &pb.NamedValue{Name: name, Value: value})
		}
	}
	for _, key := range contextTexts {
		set("GITHUB_"+strings.ToUpper(key), strings.TrimRight(t.text(key), "/"))
	}
	if file, ref := t.text("workflow"), t.text("ref"); file != "" && ref != "" {
		set("GITHUB_WORKFLOW_REF", t.text("repository")+"/.gitea/workflows/"+file+"@"+ref)
	}
	set("GITHUB_TRIGGERING_ACTOR", t.text("actor"))
	event, err := json.Marshal(t.Context["event"])
	if err != nil {
		return nil, s, fmt.Errorf("the event of the task: %w", err)
	}
	if t.Context["event"] != nil {
		set("GITHUB_EVENT", string(event))
	}
	req = &pb.SubmitPipelineRequest{
		Source: source, Options: &stepmuxv1.Job{Env: map[string]string{"GITEA_ACTIONS": "true"}},
		Repository: server + "/" + t.text("repository"), RetryLost: false,
	}
	if token := t.text("gitea_runtime_token"); token != "" {
		req.Services = &pb.BuildServices{
			Scopes: t.scopes(), Server: strings.TrimRight(t.text("server_url"), "/"), Token: token,
		}
	}
	if len(t.Secrets)+len(t.Vars) > maxVariables {
		return nil, s, fmt.Errorf("the task has more than %d variables and secrets", maxVariables)
	}
	add := func(name, value string, masked bool) {
		known := slices.ContainsFunc(req.Options.Variables, func(v *stepmuxv1.Variable) bool { return v.GetKey() == name })
		if variableNames.MatchString(name) && !known && value != "" {
			req.Options.Variables = append(req.Options.Variables,
				&stepmuxv1.Variable{Key: name, Value: strings.ToValidUTF8(value, "\uFFFD"), Masked: masked})
		}
	}
	for _, name := range sortedkeys.Of(t.Secrets) {
		add(name, t.Secrets[name], true)
	}
	add("GITHUB_TOKEN", t.text("token"), true)
	add("GITEA_RUNTIME_TOKEN", t.text("gitea_runtime_token"), true)
	for _, name := range sortedkeys.Of(t.Vars) {
		add(name, t.Vars[name], false)
	}
	s = shapeOf(t.Workflow)
	req.InImage = s.contained
	if s.calls {
		source.Text, err = withoutRunsOn(t.Workflow)
	}
	for _, f := range r.Files {
		f.addTo(req)
	}
	return req, s, err
}

// inputs are the values with which a workflow was started by hand.
func (t *Task) inputs() map[string]string {
	event, _ := t.Context["event"].(map[string]any)
	given, _ := event["inputs"].(map[string]any)
	all := map[string]string{}
	for name, value := range given {
		if text, is := value.(string); is && t.text("event_name") == "workflow_dispatch" {
			all[name] = text
		}
	}
	return all
}

// scopes are the references of git whose caches the job finds: its own, that into which it goes, and the default
// branch.
func (t *Task) scopes() (all []string) {
	add := func(ref string) {
		if ref != "" && !slices.Contains(all, ref) {
			all = append(all, ref)
		}
	}
	add(t.text("ref"))
	if base := t.text("base_ref"); base != "" {
		add("refs/heads/" + strings.TrimPrefix(base, "refs/heads/"))
	}
	event, _ := t.Context["event"].(map[string]any)
	repository, _ := event["repository"].(map[string]any)
	if branch, _ := repository["default_branch"].(string); branch != "" {
		add("refs/heads/" + branch)
	}
	return all
}

// words are the results of jobs in the words of a workflow.
var words = map[string]string{
	resultSuccess: "success", resultFailure: "failure", resultCancelled: "cancelled", resultSkipped: "skipped",
}

// maxSteps bounds the steps of a job that are reported.
const maxSteps = 1000

// shape is the form of jobs: the number of their steps, and whether one has a container, or calls a workflow.
type shape struct {
	steps            int
	contained, calls bool
}

// shapeOf returns the shape of the jobs of a workflow. Of a text with mistakes, which the manager refuses, it knows
// nothing.
func shapeOf(text []byte) (s shape) {
	t, err := yamltree.Load("", text, maxRecord)
	if err != nil || len(t.Docs) == 0 {
		return s
	}
	r := &yamltree.Reader{Text: t, Rules: yamltree.Rules{MaxCost: 4 * maxRecord, Unquoted: true, Nulls: true}}
	for _, key := range r.Mapping(t.Docs[0], "") {
		if key.Key != "jobs" {
			continue
		}
		for _, job := range r.Mapping(key.Value, "") {
			for _, part := range r.Mapping(job.Value, "") {
				switch part.Key {
				case "steps":
					s.steps = min(len(r.List(part.Value, "")), maxSteps)
				case "container":
					s.contained = s.contained || !yamltree.IsNull(part.Value)
				case "uses":
					s.calls = true
				}
			}
		}
	}
	return s
}

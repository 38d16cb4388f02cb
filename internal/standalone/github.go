package standalone

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// readGitHub reads a job of a workflow.
func readGitHub(src Source) (*Job, error) {
	job, err := action.ReadJob(src.Name, src.Text, src.JobName)
	if err != nil {
		return nil, err
	}
	if err := job.CheckMatrix(src.Matrix); err != nil {
		return nil, err
	}
	if src.lock, err = src.readLock(); err != nil {
		return nil, err
	}
	named, notes, err := job.Inputs(src.Inputs)
	if err != nil {
		return nil, err
	}
	values := map[string]any{}
	for name, text := range src.Matrix {
		var v any
		if json.Unmarshal([]byte(text), &v) != nil || isRounded(v, text) {
			v = text
		}
		values[name] = v
	}
	if src.Vars, err = gitHubVars(src, named); err != nil {
		return nil, err
	}
	given := action.Values{Inputs: named, Vars: src.Vars}
	limit, limitErr := job.Timeout(given, values)
	j, err := gitHubJob(src, job, gitHubRun{inputs: named, matrix: values, limit: limit})
	if err != nil {
		return nil, err
	}
	j.Notices = append(j.Notices, notes...)
	if limitErr != nil { // the values of other jobs are missing
		j.Notices = append(j.Notices, fmt.Sprintf("the job has no limit but that of --timeout: %v", limitErr))
	}
	if src.Elsewhere {
		j.Notices = append(j.Notices, job.LabelNotes(given, values)...)
	}
	return j, nil
}

// gitHubRun has the values of a run of a workflow's job.
type gitHubRun struct {
	inputs, matrix, needs, strategy map[string]any
	inWorkflow                      bool          // the whole workflow runs
	limit                           time.Duration // of a job that runs by itself; 0 for none
}

// gitHubJob returns a job of a workflow. It becomes one built-in step, which runs such jobs.
func gitHubJob(src Source, job *action.Job, run gitHubRun) (*Job, error) {
	inputs := map[string]any{
		"workflow": lang.Escape(string(src.Text)), "job": job.Name, "file": lang.Escape(src.Name),
	}
	for input, values := range map[string]map[string]any{
		"inputs": run.inputs, "matrix": run.matrix, "needs": run.needs, "strategy": run.strategy,
	} {
		if len(values) == 0 {
			continue
		}
		literal, err := json.Marshal(values)
		if err != nil {
			return nil, fmt.Errorf("the %s: %w", input, err)
		}
		inputs[input] = json.RawMessage(bytes.ReplaceAll(literal, []byte("${{"), []byte(`\\${{`))) // no expression of ours
	}
	if run.inWorkflow {
		inputs["in_workflow"] = true
	}
	if src.Repository != "" && bytes.Contains(src.Text, []byte(lang.Self)) { // a VM's older program has no such input
		inputs["repository"] = src.Repository
	}
	for input, text := range map[string]string{"marks": src.Marks, "actions": src.Actions} {
		if text != "" {
			inputs[input] = lang.Escape(text)
		}
	}
	if !src.NoFiles && (src.Answers != nil || hasFiles(src.WorkDir)) {
		inputs["in_project"] = true
	}
	if locked := src.lock.of(src); locked != nil {
		inputs["locked"] = locked
	}
	given := Given{Config: engine.Config{Vars: src.Vars}}
	context := action.Identity(src.Name, src.Repository, src.commit, src.Vars)
	if src.InContainer {
		inputs["in_container"] = true
		boxes, err := job.Container(run.matrix, run.inputs, run.needs, src.Vars)
		if err != nil {
			return nil, err
		}
		given.Container, given.Env, given.Notices = boxes.Text, boxes.Env, boxes.Notes
		if len(boxes.Services) > 0 {
			context["services"] = boxes.Services
		}
	}
	text, err := json.Marshal(context)
	if err != nil {
		return nil, fmt.Errorf("the context job: %w", err)
	}
	given.Vars = append(slices.Clip(given.Vars), engine.Variable{Key: stepmuxv1.JobContext, Value: string(text)})
	step := map[string]any{
		"name": stepName(job.Name), "step": "builtin://" + lang.GitHubJobStep, "inputs": inputs,
	}
	if run.limit > 0 {
		step["timeout"] = strings.ReplaceAll(run.limit.String(), "µ", "u")
	}
	steps, err := json.Marshal([]any{step})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", src.Name, err)
	}
	if isSent := src.Elsewhere || src.Answers != nil || src.InContainer; isSent && len(steps) > lang.MaxText {
		return nil, fmt.Errorf("%s: the job %.64q: the workflow, its inputs, and the outputs of the jobs that the job needs "+
			"have %d bytes together; a step runner takes %d MiB: make the outputs smaller, or use artifacts", src.Name,
			job.Name, len(steps), lang.MaxText>>20)
	}
	def, err := lang.ParseKept(src.Name, string(steps))
	if err != nil {
		return nil, err
	}
	given.Steps, given.Definition = string(steps), def
	j := NewJob(given)
	j.name = job.Name
	return j, nil
}

// hasFiles reports whether a directory has any files.
func hasFiles(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	names, _ := f.Readdirnames(1)
	return len(names) > 0
}

// commitOf returns the predefined variables that make up the context github: the commit, and its branch or tag.
func commitOf(src Source) (vars []engine.Variable) {
	for _, v := range src.Vars {
		for _, own := range []string{"CI_COMMIT_", "GITHUB_SHA", "GITHUB_REF"} {
			if strings.HasPrefix(v.Key, own) {
				return nil // the caller has chosen another commit
			}
		}
	}
	for _, v := range src.Predefined {
		switch v.Name {
		case "CI_COMMIT_SHA", "CI_COMMIT_BRANCH", "CI_COMMIT_TAG", "CI_COMMIT_REF_NAME":
			vars = append(vars, engine.Variable{Key: v.Name, Value: v.Value})
		}
	}
	return vars
}

// isRounded reports whether v is a number that is not written as in text. So the version 3.10 stays a text, and does
// not become 3.1.
func isRounded(v any, text string) bool {
	f, isNumber := v.(float64)
	return isNumber && strconv.FormatFloat(f, 'f', -1, 64) != strings.TrimSpace(text)
}

// stepName turns the name of a workflow's job into a valid name of a step.
func stepName(job string) string {
	name := strings.Map(func(c rune) rune {
		if c == '-' || c > 0x7f {
			return '_'
		}
		return c
	}, job)
	if !lang.IsName(name) {
		return "job"
	}
	return name
}

package standalone

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// readGitHub reads a job of a workflow. The job becomes one built-in step, which runs such jobs.
func readGitHub(src Source) (*Job, error) {
	job, err := action.ReadJob(src.Name, src.Text, src.JobName)
	if err != nil {
		return nil, err
	}
	if err := job.CheckMatrix(src.Matrix); err != nil {
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
	inputs := map[string]any{
		"workflow": lang.Escape(string(src.Text)), "job": job.Name, "file": lang.Escape(src.Name),
	}
	for input, values := range map[string]map[string]any{"inputs": named, "matrix": values} {
		if len(values) == 0 {
			continue
		}
		literal, err := json.Marshal(values)
		if err != nil {
			return nil, fmt.Errorf("the %s: %w", input, err)
		}
		inputs[input] = json.RawMessage(bytes.ReplaceAll(literal, []byte("${{"), []byte(`\\${{`))) // no expression of ours
	}
	src.Vars = append(slices.Clip(src.Vars), commitOf(src)...)
	if hasEvent := func(v engine.Variable) bool { return v.Key == "GITHUB_EVENT" }; len(named) > 0 &&
		!slices.ContainsFunc(src.Vars, hasEvent) {
		event, err := action.Event(named, src.Vars)
		if err != nil {
			return nil, fmt.Errorf("%s: describe the event: %w", src.Name, err)
		}
		src.Vars = append(src.Vars, engine.Variable{Key: "GITHUB_EVENT", Value: event})
	}
	if hasFiles(src.WorkDir) {
		inputs["in_project"] = true
	}
	given := Given{Notices: notes, Config: engine.Config{Vars: src.Vars}}
	if src.InContainer {
		inputs["in_container"] = true
		if given.Container, given.Env, err = job.Container(values, named, src.Vars); err != nil {
			return nil, err
		}
	}
	steps, err := json.Marshal([]any{map[string]any{
		"name": stepName(job.Name), "step": "builtin://" + lang.GitHubJobStep, "inputs": inputs,
	}})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", src.Name, err)
	}
	def, err := lang.ParseCalled(src.Name, steps)
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

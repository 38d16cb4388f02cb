package standalone

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// The names of the variables that describe the event of a workflow.
const (
	eventVariable     = "GITHUB_EVENT"
	eventNameVariable = "GITHUB_EVENT_NAME"
)

// IsEventName reports whether a text can be the name of an event.
func IsEventName(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") == ""
}

// variable returns the value of a variable, or "".
func variable(vars []engine.Variable, name string) string {
	if i := slices.IndexFunc(vars, func(v engine.Variable) bool { return v.Key == name }); i >= 0 {
		return vars[i].Value
	}
	return ""
}

// gitHubVars returns the variables of a run of a workflow: those of src, the commit, and the event. inputs are the
// values of the workflow's inputs. Without inputs and an event in src, no variable describes the event.
func gitHubVars(src Source, inputs map[string]any) ([]engine.Variable, error) {
	commit := commitOf(src)
	vars := append(slices.Clip(src.Vars), commit...)
	set := func(name, value string) {
		if value != "" && variable(vars, name) == "" {
			vars = append(vars, engine.Variable{Key: name, Value: value})
		}
	}
	if variable(vars, "CI_PROJECT_PATH") == "" {
		set("GITHUB_REPOSITORY", cmp.Or(src.predefined("CI_PROJECT_PATH"), "local/"+localName(src.WorkDir)))
	}
	if variable(vars, "GITLAB_USER_LOGIN") == "" { // actions make commits in the name of the actor
		set("GITHUB_ACTOR", actor())
		set("GITHUB_TRIGGERING_ACTOR", variable(vars, "GITHUB_ACTOR"))
	}
	of := func() []engine.Variable { // the ref may be that of the event
		ref, _ := action.Identity(src.Name, "", "", vars)["workflow_ref"].(string)
		set("GITHUB_WORKFLOW_REF", ref)
		return vars
	}
	if src.Event == "" && len(inputs) == 0 || variable(vars, eventVariable) != "" {
		set(eventNameVariable, src.Event)
		return of(), nil
	}
	payload, err := readPayload(src.Payload)
	if err != nil {
		return nil, err
	}
	if src.Event == "pull_request" || src.Event == "pull_request_target" {
		payload = pullRequest(payload, vars, src)
		number, _ := payload["number"].(float64)
		pull := under(payload, "pull_request")
		set("GITHUB_HEAD_REF", textUnder(under(pull, "head"), "ref"))
		set("GITHUB_BASE_REF", textUnder(under(pull, "base"), "ref"))
		if src.Event == "pull_request" {
			set("GITHUB_REF", fmt.Sprintf("refs/pull/%.0f/merge", number))
			set("GITHUB_REF_NAME", fmt.Sprintf("%.0f/merge", number))
		}
	}
	set(eventNameVariable, src.Event)
	for key, value := range action.Event(inputs, vars) {
		if _, there := payload[key]; !there {
			payload[key] = value
		}
	}
	if src.Payload == nil && src.Event == "push" && commit != nil {
		pushed(payload, vars, src)
	}
	made, err := json.Marshal(payload)
	if err != nil {
		return nil, fmt.Errorf("%s: describe the event: %w", src.Name, err)
	}
	set(eventVariable, string(made))
	return of(), nil
}

// CheckPayload returns an error if the payload of an event is no JSON object.
func CheckPayload(text []byte) error {
	_, err := readPayload(text)
	return err
}

// readPayload reads a payload. Without a text it is empty.
func readPayload(text []byte) (map[string]any, error) {
	payload := map[string]any{}
	if text == nil {
		return payload, nil
	}
	if len(text) > lang.MaxText {
		return nil, fmt.Errorf("the payload of the event has more than %d MiB", lang.MaxText>>20)
	}
	if err := json.Unmarshal(text, &payload); err != nil {
		return nil, fmt.Errorf("the payload of the event is not valid: %w", err)
	}
	if payload == nil {
		return nil, errors.New("the payload of the event is null; it is a JSON object")
	}
	return payload, nil
}

// under returns the object below a key.
func under(of map[string]any, key string) map[string]any {
	found, _ := of[key].(map[string]any)
	return found
}

func textUnder(of map[string]any, key string) string {
	found, _ := of[key].(string)
	return found
}

// predefined returns a predefined variable of the commit.
func (src *Source) predefined(name string) string {
	for _, v := range src.Predefined {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

// pullRequest returns the payload of a pull request. If none was given, it is one from the branch of the commit to the
// default branch.
func pullRequest(given map[string]any, vars []engine.Variable, src Source) map[string]any {
	if len(given) > 0 {
		return given
	}
	branch := cmp.Or(variable(vars, "GITHUB_HEAD_REF"), variable(vars, "CI_COMMIT_BRANCH"))
	base := cmp.Or(variable(vars, "GITHUB_BASE_REF"), src.predefined("CI_DEFAULT_BRANCH"), "main")
	return map[string]any{
		"action": "synchronize", "number": 1.0,
		"pull_request": map[string]any{
			"number": 1.0, "state": "open", "draft": false, "merged": false, "labels": []any{},
			"title": src.predefined("CI_COMMIT_TITLE"), "body": src.predefined("CI_COMMIT_DESCRIPTION"),
			"head": map[string]any{"ref": branch, "sha": variable(vars, "CI_COMMIT_SHA")},
			"base": map[string]any{"ref": base},
		},
	}
}

// pushed adds the commit of a push to its payload.
func pushed(payload map[string]any, vars []engine.Variable, src Source) {
	name, email, _ := strings.Cut(strings.TrimSuffix(src.predefined("CI_COMMIT_AUTHOR"), ">"), " <")
	author := map[string]any{"name": name, "email": email}
	sha := variable(vars, "CI_COMMIT_SHA")
	commit := map[string]any{
		"id": sha, "message": src.predefined("CI_COMMIT_MESSAGE"), "timestamp": src.predefined("CI_COMMIT_TIMESTAMP"),
		"author": author, "committer": author,
	}
	payload["after"], payload["head_commit"], payload["commits"] = sha, commit, []any{commit}
	payload["created"], payload["deleted"], payload["forced"] = false, false, false
	if repository := under(payload, "repository"); repository != nil {
		repository["default_branch"] = src.predefined("CI_DEFAULT_BRANCH")
	}
}

// actor returns the name of this user.
func actor() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return "local"
}

// localName returns the name of a directory in the form of a repository's name.
func localName(dir string) string {
	name := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' {
			return c
		}
		return '-'
	}, filepath.Base(dir))
	return cmp.Or(strings.Trim(name, ".-"), "project")
}

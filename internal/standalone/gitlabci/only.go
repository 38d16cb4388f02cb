package gitlabci

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// onlyKeys are the keys of only and except in their form as mappings.
var onlyKeys = []string{"refs", "variables", "changes", "kubernetes"}

// selected reports whether only and except put the job into a pipeline with the variables of e. All keys of only must
// match, and no key of except. As with GitLab, a job without them and without rules, also of the workflow, is for
// branches and tags: not for a merge request.
func (d *draft) selected(e *expander) bool {
	only, except := find(d.node, "only"), find(d.node, "except")
	rules := find(d.node, "rules")
	if isNull(only) && isNull(except) {
		source, _ := e.lookUp("CI_PIPELINE_SOURCE")
		isRuled := !isNull(rules) || !isNull(find(d.file.globals["workflow"], "rules"))
		return isRuled || source != "merge_request_event"
	}
	if !isNull(rules) {
		d.file.tree.failf(rules, "the job%s has both rules and only or except; a job has one of them", lang.QuoteName(d.name))
		return true
	}
	in := true
	for _, match := range d.file.policy("only", only, e) {
		in = in && match
	}
	if find(only, "refs") == nil && (isNull(only) || only.Kind == yaml.MappingNode) { // GitLab's default
		in = in && (refersTo("branches", e) || refersTo("tags", e))
	}
	out := slices.Contains(d.file.policy("except", except, e), true)
	return in && !out
}

// policy returns for each part of only or except whether it matches.
func (f *File) policy(name string, n *yaml.Node, e *expander) (parts []bool) {
	switch {
	case isNull(n):
		return nil
	case n.Kind != yaml.MappingNode:
		return []bool{f.anyRef(name, n, e)}
	}
	f.tree.checkKeys(n, name, onlyKeys, "")
	for key, value := range entries(n) {
		if isNull(value) {
			continue
		}
		match := false
		switch key.Value {
		case "refs":
			match = f.anyRef(name, value, e)
		case "variables":
			for _, condition := range itemsOf(value) {
				match = f.conditionHolds(condition, e) || match
			}
		case "changes":
			match = f.changed(value, e)
		case "kubernetes":
			f.notice(name + ":kubernetes (treated as missing)")
		}
		parts = append(parts, match)
	}
	return parts
}

// anyRef reports whether one of the names or regexes in n matches the pipeline.
func (f *File) anyRef(name string, n *yaml.Node, e *expander) (match bool) {
	for _, item := range itemsOf(n) {
		if item.Kind != yaml.ScalarNode {
			f.tree.failf(item, "%s takes names such as main, tags or merge_requests, and regexes such as /^v/, not %s", name,
				describe(item))
			continue
		}
		if strings.HasPrefix(item.Value, "/") {
			if _, _, err := readRegex(item.Value); err != nil {
				f.tree.failf(item, "%s: %v", name, err)
			}
		}
		match = refersTo(item.Value, e) || match
	}
	return match
}

// refersTo reports whether an entry of refs matches the pipeline with the variables of e: branches, tags, its source
// (schedules, merge_requests) or, for a branch or a tag, its name or a regex for the name.
func refersTo(entry string, e *expander) bool {
	value := func(name string) string {
		text, _ := e.lookUp(name)
		return text
	}
	isHere := func(project string) bool {
		path := value("CI_PROJECT_PATH")
		return project == "" || path == "" || path == project
	}
	if regex, rest, err := readRegex(entry); err == nil { // a regex may contain @
		return isHere(strings.TrimPrefix(rest, "@")) && isRef(value) && regex.MatchString(value("CI_COMMIT_REF_NAME"))
	}
	entry, project, _ := strings.Cut(entry, "@")
	if !isHere(project) {
		return false
	}
	source := strings.TrimSuffix(value("CI_PIPELINE_SOURCE"), "_event")
	many := source + "s"
	if strings.HasSuffix(source, "sh") {
		many = source + "es"
	}
	switch entry {
	case "tags":
		return value("CI_COMMIT_TAG") != ""
	case "branches":
		return isRef(value) && value("CI_COMMIT_TAG") == ""
	case source, many:
		return source != ""
	default:
		return isRef(value) && entry == value("CI_COMMIT_REF_NAME")
	}
}

// isRef reports whether a pipeline is for a branch or a tag, and not for a merge request.
func isRef(value func(name string) string) bool {
	return value("CI_COMMIT_REF_NAME") != "" && value("CI_PIPELINE_SOURCE") != "merge_request_event"
}

package lang

import (
	"errors"
	"path"
	"slices"
	"strings"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// GitHubJobStep is the built-in step that runs the steps of a job of a GitHub workflow.
const GitHubJobStep = "github/job"

const dockerScheme = "docker://"

// Self begins the reference to an action or a workflow in the repository of the file that has the reference, at the
// commit of that file. The rest is a path.
const Self = "$/"

// ParseAction reads the reference to a GitHub Action: ./directory, $/directory (see [Self]),
// owner/repository[/directory]@revision, or docker://image. The third form may begin with https://host/; then /-/ may
// end the repository.
func ParseAction(text string) (*pb.Reference, error) {
	ref := &pb.Reference{Protocol: pb.Reference_action}
	switch {
	case text == "":
		return nil, errors.New("action is empty; write owner/repository@revision")
	case hasControl(text):
		return nil, errors.New("the action has a control character")
	case text == "." || strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../"):
		ref.Path = text
		return ref, nil
	case strings.HasPrefix(text, dockerScheme) && len(text) > len(dockerScheme):
		ref.Url = text
		return ref, nil
	case strings.HasPrefix(text, Self):
		dir := strings.Trim(text[len(Self):], "/")
		if path.Clean(dir) != dir || strings.HasPrefix(dir, "..") {
			return nil, errors.New("the action is not valid; after $/ write its directory in the repository")
		}
		ref.Path = Self + dir
		return ref, nil
	}
	wrong := errors.New("the action is not valid; write owner/repository@revision, owner/repository/directory@revision, " +
		"./directory or docker://image")
	i := strings.LastIndex(text, "@")
	if i < 0 {
		return nil, wrong
	}
	where, rev := text[:i], text[i+1:]
	if CheckRevision(rev) != nil {
		return nil, wrong
	}
	ref.Rev = rev
	dir := ""
	if strings.Contains(where, "://") {
		ref.Url, dir, _ = strings.Cut(where, "/-/")
		if !isURL(ref.GetUrl(), "https", "http") {
			return nil, wrong
		}
	} else {
		parts := strings.SplitN(where, "/", 3)
		name := parts[:min(len(parts), 2)] // the schema accepts a name without an owner, too; no server has one
		if slices.ContainsFunc(name, func(part string) bool { return !isSegment(part) }) {
			return nil, wrong
		}
		ref.Repository = strings.Join(name, "/")
		dir = strings.Join(parts[len(name):], "/")
	}
	if dir = strings.Trim(dir, "/"); dir != "" && (path.Clean(dir) != dir || strings.HasPrefix(dir, "..")) {
		return nil, wrong
	}
	ref.Path = dir
	return ref, nil
}

// isSegment reports whether text can be the name of an owner or a repository.
func isSegment(text string) bool {
	return strings.Trim(text, ".") != "" && !strings.HasPrefix(text, "-") && !strings.ContainsAny(text, `\?#:@% `)
}

// ActionText returns the text from which ParseAction made ref.
func ActionText(ref *pb.Reference) string {
	dir, rev := ref.GetPath(), ""
	if ref.GetRev() != "" {
		rev = "@" + ref.GetRev()
	}
	switch {
	case ref.GetUrl() != "" && dir != "":
		return ref.GetUrl() + "/-/" + dir + rev
	case ref.GetUrl() != "":
		return ref.GetUrl() + rev
	case ref.GetRepository() != "" && dir != "":
		return ref.GetRepository() + "/" + dir + rev
	default:
		return ref.GetRepository() + dir + rev
	}
}

// checkActionInput refuses names that no action's input can have: the name becomes part of the name of a variable.
func checkActionInput(w word) error {
	if w.text == "" || len(w.text) > maxName || hasControl(w.text) || strings.Contains(w.text, "=") {
		return w.at.errorf("the name of the input%s is not valid", Quote(w.text))
	}
	return nil
}

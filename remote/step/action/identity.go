package action

import (
	"path"
	"strings"

	"github.com/stepmux/stepmux/remote/step/engine"
)

// Identity returns the properties of the context job that name a workflow's file, and the commit from which it comes.
// It is of the owner/name@revision, at a commit that may be unknown. Without that it is of the project, which vars
// describe. Unknown ones are empty.
func Identity(file, repository, commit string, vars []engine.Variable) map[string]any {
	known := map[string]string{}
	for _, v := range vars {
		known[v.Key] = v.Value
	}
	name, ref, ofRepository := strings.Cut(repository, "@")
	if ofRepository {
		file, _, _ = strings.Cut(file, "@")
	} else {
		github := githubTexts(func(name string) string { return known[name] })
		name, ref, commit = github["repository"], github["ref"], github["sha"]
	}
	file = path.Clean(file)
	if at := strings.LastIndex(file, workflowsDir+"/"); at >= 0 {
		file = file[at:]
	} else {
		file = workflowsDir + "/" + path.Base(file)
	}
	whole := ""
	if ref != "" {
		whole = name + "/" + file + "@" + ref
	}
	return map[string]any{
		"workflow_repository": name, "workflow_file_path": file, "workflow_sha": commit, "workflow_ref": whole,
	}
}

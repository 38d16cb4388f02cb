package lang

import (
	"strings"

	"go.yaml.in/yaml/v4"
)

// otherFile explains a mistake in a text that is a file of another kind. It returns nil if the text may be meant as
// steps. A text that is not YAML has no documents.
func otherFile(t *Source) error {
	root := &yaml.Node{}
	if len(t.Docs) > 0 {
		root = t.Docs[0]
	}
	job := func(n *yaml.Node) bool { return member(n, "script") != nil || member(n, "trigger") != nil }
	isList := root.Kind == yaml.SequenceNode || root.Kind == yaml.MappingNode
	switch {
	case strings.HasPrefix(withoutBOM(t.Data), "#!") && !isList:
		return t.ErrorAt(1, 1, `the file is a script, not steps; write "run:", "- script: |" and the script, indented`)
	case root.Kind != yaml.MappingNode || member(root, "run") != nil || member(root, "exec") != nil:
		return nil
	case member(root, "on") != nil && member(root, "jobs") != nil:
		return t.ErrorAt(1, 1, "the file is a workflow of GitHub Actions, not steps; stepmux local, validate and actions "+
			"vendor read it with --format github")
	}
	for i := 1; i < len(root.Content); i += 2 {
		if job(root.Content[i]) {
			return t.ErrorAt(1, 1, "the file is a .gitlab-ci.yml, not steps; stepmux local, run, submit and validate read it "+
				"with --format gitlab-ci")
		}
	}
	return nil
}

// member returns the value of a key of a mapping, or nil.
func member(n *yaml.Node, key string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

package lang

import "github.com/stepmux/stepmux/internal/lazyregexp"

// The keys of the language. The reader, its errors and the schema all use these lists.
var (
	jobKeys      = []string{"run", "exec", "env", "outputs", "delegate"}
	definitionV0 = []string{"type", "exec", "steps", "env"}
	stepKeys     = []string{
		"name", "step", "func", "script", "exec", "run", "action", "inputs", "env", "when", "if", "timeout",
	}
	execKeys       = []string{"command", "work_dir", "timeout"}
	longForms      = []string{"git", "zip", "oci"}
	specKeys       = []string{"inputs", "outputs", "requests"}
	requestKeys    = []string{"env", "vars"}
	inputKeys      = []string{"type", "default", "description", "sensitive"}
	inputKeysV0    = []string{"type", "default", "description", "sensitive", "options", "match"}
	outputKeys     = []string{"type", "default", "description", "sensitive"}
	whens          = []string{OnSuccess, OnFailure, Always}
	definitionType = []string{"exec", "steps"}
)

// longKeys and longRequired are the keys of the long forms of a reference.
var (
	longKeys = map[string][]string{
		"git": {"url", "rev", "dir", "file"},
		"zip": {"url", "sha256", "dir", "file"},
		"oci": {"registry", "repository", "tag", "dir", "file"},
	}
	longRequired = map[string][]string{"git": {"url", "rev"}, "zip": {"url"}, "oci": {"registry", "repository", "tag"}}
)

// ways are the keys by which a step names its code. A step has one of them.
var ways = []string{"step", "func", "script", "exec", "run", "action"}

// workDirs are all published spellings of work_dir.
var workDirs = []string{"work_dir", "workdir", "working_dir"}

// delegateWord is the value of outputs: in the place of a list.
const delegateWord = "delegate"

// timeoutPattern matches a timeout. The schema uses it, too.
var timeoutPattern = lazyregexp.New(`^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$`)

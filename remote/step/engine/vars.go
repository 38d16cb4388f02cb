package engine

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Variable is a job variable. Expressions can read it; it is not in the environment of a step.
type Variable struct {
	// Key matches [A-Za-z_][A-Za-z0-9_]*.
	Key   string
	Value string
	// File says that steps get the path of a file that has the value.
	File bool
	// Masked says that the value is a secret.
	Masked bool
}

// secrets are the variables with secrets that GitLab and GitHub give each job.
var secrets = []string{
	"CI_BUILD_TOKEN", "CI_DEPENDENCY_PROXY_PASSWORD", "CI_DEPLOY_PASSWORD", "CI_JOB_JWT", "CI_JOB_JWT_V1", "CI_JOB_JWT_V2",
	"CI_JOB_TOKEN", "CI_REGISTRY_PASSWORD", "GITHUB_TOKEN",
}

// IsSecret reports whether a variable of this name is known to hold a secret, as CI_JOB_TOKEN and GITHUB_TOKEN do. Such
// a variable is to be masked.
func IsSecret(name string) bool { return slices.Contains(secrets, name) }

// EnvironmentVars returns the variables in environ, which has the form of [os.Environ], as job variables, except for
// those in without. It masks variables that are known to hold secrets, and those in masked.
func EnvironmentVars(environ, masked []string, without ...string) (vars []Variable) {
	seen := map[string]bool{}
	for _, name := range without {
		seen[name] = true
	}
	for _, entry := range environ {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || seen[name] || !lang.IsName(name) {
			continue
		}
		seen[name] = true
		secret := IsSecret(name) || slices.Contains(masked, name)
		vars = append(vars, Variable{Key: name, Value: value, Masked: secret})
	}
	return vars
}

// varsDir is the directory of the files of variables.
const varsDir = "vars"

// predefined are the variables that describe a job, and their places in the context job.
var predefined = []struct{ variable, group, key string }{
	{"CI_JOB_ID", "", "id"},
	{"CI_JOB_NAME", "", "name"},
	{"CI_PROJECT_ID", "project", "id"},
	{"CI_PROJECT_NAME", "project", "name"},
	{"CI_PROJECT_PATH", "project", "full_path"},
	{"CI_PIPELINE_ID", "pipeline", "id"},
}

// variables returns the values of the job's variables, and makes the files of file variables.
func (r *Runner) variables() (map[string]expr.Value, error) {
	values := make(map[string]expr.Value, len(r.cfg.Vars))
	for _, v := range r.cfg.Vars {
		if !lang.IsVariable(v.Key) {
			return nil, fmt.Errorf("a job variable has the name %.64q; use letters, digits, _ and -, a letter first", v.Key)
		}
		if _, twice := values[v.Key]; twice {
			return nil, fmt.Errorf("the job variable %s is given twice", v.Key)
		}
		if v.Masked && v.Value != "" {
			_ = r.hide(v.Value) // the job store refuses a job with too many secrets
		}
		text := v.Value
		if v.File {
			var err error
			if text, err = r.writeVariable(v); err != nil {
				return nil, err
			}
		}
		value, err := expr.New(text)
		if err != nil {
			return nil, fmt.Errorf("the job variable %s: %w", v.Key, err)
		}
		if v.Masked && !v.File {
			value = value.MarkMasked()
		}
		values[v.Key] = value
	}
	return values, nil
}

// writeVariable writes the file of v, which only our user can read, and returns its path.
func (r *Runner) writeVariable(v Variable) (string, error) {
	if err := r.scripts.mkdir(varsDir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("create directory for variables: %w", err)
	}
	name := filepath.Join(varsDir, v.Key)
	return r.scripts.join(name), r.scripts.write(name, v.Value, "variable "+v.Key)
}

// jobContext returns the value of job in expressions: the variables and, under the blueprint's names, the description
// of the job.
func jobContext(vars map[string]expr.Value) (expr.Value, error) {
	context := description(vars)
	context["variables"] = vars
	for key, v := range vars {
		context[key] = v
	}
	return expr.New(context)
}

// description is the part of job that comes from the predefined variables.
func description(vars map[string]expr.Value) map[string]any {
	about := map[string]any{}
	for _, p := range predefined {
		v, found := vars[p.variable]
		if !found {
			continue
		}
		group, _ := about[p.group].(map[string]any)
		switch {
		case p.group == "":
			about[p.key] = v
		case group == nil:
			about[p.group] = map[string]any{p.key: v}
		default:
			group[p.key] = v
		}
	}
	return about
}

// describing returns the predefined variables that make the part of the job's description at path.
func describing(path []string) (names []string) {
	for _, p := range predefined {
		if len(path) == 0 || cmp.Or(p.group, p.key) == path[0] {
			names = append(names, p.variable)
		}
	}
	return names
}

// tellReads reports the variables that expressions with the references refs may read.
func (r *Runner) tellReads(refs []expr.Reference) {
	for _, ref := range refs {
		if path := ref.Path; len(path) > 0 && (path[0] == "vars" || path[0] == "job") {
			r.tell(func(e Events) { e.VariablesRead(r.readsOf(path[0], path[1:])) })
		}
	}
}

// readsOf returns the variables that an expression may read by path in the context vars or job.
func (r *Runner) readsOf(context string, path []string) []string {
	variables := context == "job" && len(path) > 0 && path[0] == "variables"
	if variables && len(path) > 1 {
		return path[1:2]
	}
	if variables || len(path) == 0 {
		names := make([]string, len(r.cfg.Vars))
		for i, v := range r.cfg.Vars {
			names[i] = v.Key
		}
		return names
	}
	if context == "vars" {
		return path[:1]
	}
	return append(describing(path), path[0])
}

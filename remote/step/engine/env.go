package engine

import (
	"maps"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// basicEnv names the variables of the runner's environment that tell of the machine, the user, and the proxies of the
// network. Any other could be a secret of the runner.
var basicEnv = map[string]bool{
	"PATH": true, "HOME": true, "LOGNAME": true, "USER": true, "SHELL": true, "TERM": true, "TMPDIR": true, "TZ": true,
	"LANG": true, "LC_ALL": true, "LC_CTYPE": true,
	"HTTP_PROXY": true, "HTTPS_PROXY": true, "NO_PROXY": true, "ALL_PROXY": true,
	"http_proxy": true, "https_proxy": true, "no_proxy": true, "all_proxy": true,
}

// defaultPath is a step's PATH where nobody says otherwise.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// layer is one of the layers an environment is made of.
type layer = map[string]expr.Value

// osLayer is the part of runner that steps may see. runner is the runner's own environment in the form of
// [os.Environ].
func osLayer(runner []string, pass PassEnv) layer {
	env := layer{"PATH": text(defaultPath)}
	for _, kv := range runner {
		if name, value, ok := strings.Cut(kv, "="); ok && pass.passes(name, value) {
			env[name] = text(value)
		}
	}
	return env
}

// text is s as a value. It is for texts that are known to be within the limits of one.
func text(s string) expr.Value {
	v, err := expr.New(s)
	if err != nil {
		panic("BUG: a text that is too long: " + err.Error())
	}
	return v
}

// environ returns the environment env for a process, sorted.
func environ(env layer) []string {
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name].Text())
	}
	return list
}

// environment is the environment of a step in f, and the value of env in its expressions: the outside variables that
// f may know, overridden by those of the job's text. The
// script of a job as a manager sends it has the job's variables there, as GitLab has it.
func (r *Runner) environment(f *frame) layer {
	env := layer{}
	outside := []layer{r.osEnv, r.requestEnv, r.exports}
	if f.builtin == lang.ManagerScriptStep {
		outside = []layer{r.osEnv, r.requestEnv, r.varValues, r.exports}
	}
	for _, l := range outside {
		maps.Copy(env, l)
	}
	maps.DeleteFunc(env, func(name string, _ expr.Value) bool { return !f.mayKnow(name) })
	for _, l := range f.env {
		maps.Copy(env, l)
	}
	return env
}

package engine

import (
	"maps"
	"strings"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// basicEnv names the variables of the runner's environment that describe the machine, the user, and the proxies of the
// network. Any other variable could be a secret of the runner.
var basicEnv = []string{
	"PATH", "HOME", "LOGNAME", "USER", "SHELL", "TERM", "TMPDIR", "TZ",
	"LANG", "LC_ALL", "LC_CTYPE",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
	"http_proxy", "https_proxy", "no_proxy", "all_proxy",
}

// defaultPath is a step's PATH if no other layer of its environment has one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// layer is a part of an environment. Inner layers override outer ones.
type layer = map[string]expr.Value

// osLayer is the part of runner that steps may see. runner is the runner's own environment in the form of
// [os.Environ].
func osLayer(runner []string, pass passing) layer {
	env := layer{"PATH": text(defaultPath)}
	for _, kv := range runner {
		if name, value, ok := strings.Cut(kv, "="); ok && pass.passes(name, value) {
			env[name] = text(value)
		}
	}
	return env
}

// text returns s as a value. Use it for texts that are certainly within the limits of a value.
func text(s string) expr.Value {
	v, err := expr.New(s)
	if err != nil {
		panic("BUG: a text that is too long: " + err.Error())
	}
	return v
}

// environ returns env in the form of os.Environ, sorted.
func environ(env layer) []string {
	list := make([]string, 0, len(env))
	for _, name := range sortedkeys.Of(env) {
		list = append(list, name+"="+env[name].Text())
	}
	return list
}

// environment returns the environment of a step in f, which is also the value of env in its expressions. It has the
// outside variables that f may know; the env of the job's text overrides them. For the script of a job from GitLab's
// manager it also has the job's variables, as GitLab has.
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

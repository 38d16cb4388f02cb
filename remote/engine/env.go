package engine

import (
	"maps"
	"slices"
	"strings"
)

// fromOS names the variables that steps get from the runner's own environment: what a program needs
// to know of the machine and of the user, and the way out of the network. Nothing else passes; it
// could be a secret of the runner's.
var fromOS = map[string]bool{
	"PATH": true, "HOME": true, "LOGNAME": true, "USER": true, "SHELL": true, "TERM": true, "TMPDIR": true, "TZ": true,
	"LANG": true, "LC_ALL": true, "LC_CTYPE": true,
	"HTTP_PROXY": true, "HTTPS_PROXY": true, "NO_PROXY": true, "ALL_PROXY": true,
	"http_proxy": true, "https_proxy": true, "no_proxy": true, "all_proxy": true,
}

// defaultPath is a step's PATH where nobody says otherwise.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Environ returns the environment of a step, sorted, in the form of [os.Environ]: of runner, which is
// the runner's own in that form, what steps may see; over it the layers, of which a later one wins.
func Environ(runner []string, layers ...map[string]string) []string {
	env := map[string]string{"PATH": defaultPath}
	for _, kv := range runner {
		if name, value, ok := strings.Cut(kv, "="); ok && fromOS[name] {
			env[name] = value
		}
	}
	for _, layer := range layers {
		maps.Copy(env, layer)
	}
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// lookup returns the value of name in env.
func lookup(env []string, name string) string {
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

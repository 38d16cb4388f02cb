package standalone

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/lang"
)

const (
	// StepsVariable is the environment variable that has the steps for the command ci.
	StepsVariable = "STEPS"
	// TokenVariable is the environment variable that may have the token of a service.
	TokenVariable = "STEPMUX_TOKEN"
)

// EnvironmentVars returns the variables in environ, which has the form of [os.Environ], as job variables, because a CI
// job has its variables there. masked names more variables that hold secrets; each must exist.
func EnvironmentVars(environ, masked []string) ([]engine.Variable, error) {
	vars := engine.EnvironmentVars(environ, masked, StepsVariable, TokenVariable)
	return vars, checkMasked(vars, masked)
}

// checkMasked returns an error if a variable to be masked does not exist. The error does not have the text, which may
// be the secret itself.
func checkMasked(vars []engine.Variable, masked []string) error {
	for i, name := range masked {
		if slices.ContainsFunc(vars, func(v engine.Variable) bool { return v.Key == name }) {
			continue
		}
		if at := slices.IndexFunc(vars, func(v engine.Variable) bool { return v.Value == name }); at >= 0 && name != "" {
			return fmt.Errorf("--mask takes the name of a variable, not its value: write --mask %s", vars[at].Key)
		}
		return fmt.Errorf("--mask takes the name of a variable: there is none of the name in the --mask with the number %d, "+
			"which is not shown because it may be a secret", i+1)
	}
	return nil
}

// Vars returns given, each NAME=VALUE or NAME, as job variables. NAME takes its value from lookup, the environment.
// masked names the variables that hold secrets; each must exist. Those that [engine.IsSecret] knows are masked, too. If
// a name comes several times, the last value counts.
func Vars(given, masked []string, lookup func(string) (string, bool)) ([]engine.Variable, error) {
	var vars []engine.Variable
	for _, text := range given {
		name, value, ok := strings.Cut(text, "=")
		if !lang.IsName(name) {
			return nil, fmt.Errorf("--var: the variable name%s is not valid; write NAME=VALUE, or NAME for its value in the "+
				"environment", lang.Quote(name))
		}
		if !ok {
			if value, ok = lookup(name); !ok {
				return nil, fmt.Errorf("--var: the variable %s is not in the environment; export it, or write %s=VALUE if it is "+
					"no secret", name, name)
			}
		}
		v := engine.Variable{Key: name, Value: value, Masked: engine.IsSecret(name) || slices.Contains(masked, name)}
		vars = slices.DeleteFunc(vars, func(other engine.Variable) bool { return other.Key == name })
		vars = append(vars, v)
	}
	return vars, checkMasked(vars, masked)
}

// Inputs returns given, each name=value, as a map. If a name comes several times, the last value counts.
func Inputs(given []string) (map[string]string, error) {
	inputs := make(map[string]string, len(given))
	for _, text := range given {
		name, value, ok := strings.Cut(text, "=")
		if !ok || !lang.IsName(name) {
			return nil, fmt.Errorf("the input%s is not valid; write name=value", lang.Quote(name))
		}
		inputs[name] = value
	}
	return inputs, nil
}

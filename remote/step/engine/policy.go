package engine

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// UnsafeExports says how to treat an export that changes every later program, such as LD_PRELOAD.
type UnsafeExports int

// The values of UnsafeExports.
const (
	DropUnsafe   UnsafeExports = iota // it is left out, with a warning
	RefuseUnsafe                      // it fails its step
	AllowUnsafe                       // it is treated as any other export
)

var unsafePolicies = []string{DropUnsafe: "drop", RefuseUnsafe: "refuse", AllowUnsafe: "allow"}

// String returns the policy as in a flag: drop, refuse or allow.
func (u UnsafeExports) String() string { return unsafePolicies[u] }

// ParseUnsafeExports returns the policy of that name.
func ParseUnsafeExports(text string) (UnsafeExports, error) {
	i := slices.Index(unsafePolicies, text)
	if i < 0 {
		return 0, fmt.Errorf("%.64q is not known; use drop, refuse or allow", text)
	}
	return UnsafeExports(i), nil
}

// unsafeExports are the variables that change every later program, and the runner's own variables in the blueprint's
// dialect.
var unsafeExports = []string{
	"LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "SHELLOPTS", "BASHOPTS",
	"OUTPUT_FILE", "ENV_FILE", "STEP_RUNNER_OUTPUT", "STEP_RUNNER_ENV", "STEP_JSON",
}

// PassEnv says which variables of the runner's own environment reach the steps. The zero value passes variables that
// describe the machine, the user, and the proxies of the network.
type PassEnv struct {
	// Base is the set of variables that pass, whatever Names has.
	Base passBase
	// Names are more variables that pass.
	Names []string
}

// passBase is a set of variables of the runner's environment.
type passBase int

// The values of passBase.
const (
	PassBasic passBase = iota // variables that describe the machine, the user and the proxies
	PassAll                   // all except URLs with a password and names that look like secrets
	PassNone                  // no variables
)

// ParsePassEnv reads a policy from the values of a flag: names of variables, and the words all and none.
func ParsePassEnv(values []string) (PassEnv, error) {
	var p PassEnv
	for _, value := range values {
		switch {
		case value == "all" && p.Base != PassNone:
			p.Base = PassAll
		case value == "none" && p.Base != PassAll:
			p.Base = PassNone
		case value == "all" || value == "none":
			return p, errors.New("all and none exclude each other")
		case !lang.IsName(value):
			return p, fmt.Errorf("the variable name%s is not valid; write the name of a variable, all or none",
				lang.Quote(value))
		default:
			p.Names = append(p.Names, value)
		}
	}
	return p, nil
}

// passes reports whether the variable name, which has value, reaches the steps.
func (p PassEnv) passes(name, value string) bool {
	switch {
	case slices.Contains(p.Names, name):
		return true
	case slices.Contains(basicEnv, name):
		return p.Base != PassNone
	default:
		return p.Base == PassAll && lang.IsName(name) && !looksSecret(name) && !holdsPassword(value)
	}
}

// secretWords are words in the names of secrets. Underscores separate the words of a name.
var secretWords = []string{
	"TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASS", "PASSPHRASE", "PASSCODE", "PWD", "CREDENTIAL",
	"CREDENTIALS", "KEY", "APIKEY", "JWT", "AUTH", "COOKIE", "PRIVATE", "SALT", "DSN",
}

// secretEnds are words of secrets that are often joined to the word before, as in GITLABTOKEN.
var secretEnds = []string{"TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSPHRASE", "APIKEY"}

// looksSecret reports whether name looks like the name of a variable with a secret. PWD and OLDPWD are directories.
func looksSecret(name string) bool {
	if name == "PWD" || name == "OLDPWD" {
		return false
	}
	name = strings.ToUpper(name)
	isSecret := func(word string) bool { return slices.Contains(secretWords, word) }
	endsIn := func(end string) bool { return strings.HasSuffix(name, end) }
	return slices.ContainsFunc(strings.Split(name, "_"), isSecret) || slices.ContainsFunc(secretEnds, endsIn)
}

// holdsPassword reports whether value is a URL with a password, as of a database.
func holdsPassword(value string) bool {
	if !strings.Contains(value, "://") {
		return false
	}
	u, err := url.Parse(value)
	if err != nil {
		return strings.Contains(value, "@")
	}
	_, given := u.User.Password()
	return given
}

package engine

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// Policy says which variables of the runner's environment reach a job's steps, and which exports of a step reach later
// steps. The zero value passes variables that describe the machine, the user and the proxies of the network, and drops
// unsafe exports.
type Policy struct {
	// PassEnv are the names of more variables of the runner's environment that pass. The word all passes all except
	// URLs with a password and names that look like secrets; none passes only the names in the list.
	PassEnv []string
	// UnsafeExports is the treatment of an export that changes every later program, such as LD_PRELOAD: drop leaves it
	// out, with a warning; refuse fails its step; allow treats it as any other. If empty, drop.
	UnsafeExports string
}

// Passing returns the Policy that passes names, or all or none; see [Policy].
func Passing(names ...string) Policy { return Policy{PassEnv: names} }

// PolicyOf returns the Policy of a message.
func PolicyOf(m interface {
	GetPassEnv() []string
	GetUnsafeExports() string
},
) Policy {
	return Policy{PassEnv: m.GetPassEnv(), UnsafeExports: m.GetUnsafeExports()}
}

// Under returns p with the settings of over, where those are not empty.
func (p Policy) Under(over Policy) Policy {
	if len(over.PassEnv) > 0 {
		p.PassEnv = over.PassEnv
	}
	p.UnsafeExports = cmp.Or(over.UnsafeExports, p.UnsafeExports)
	return p
}

// Check returns an error if a value of p is not valid.
func (p Policy) Check() error {
	_, _, err := p.parse()
	return err
}

// parse returns p in the form in which it is applied. If p is not valid, nothing passes and unsafe exports are refused.
func (p Policy) parse() (passing, unsafeExport, error) {
	pass, err := parsePassEnv(p.PassEnv)
	if err != nil {
		return passing{base: passNone}, refuseUnsafe, fmt.Errorf("pass-env: %w", err)
	}
	unsafe := slices.Index(unsafePolicies, cmp.Or(p.UnsafeExports, unsafePolicies[dropUnsafe]))
	if unsafe < 0 {
		return passing{base: passNone}, refuseUnsafe,
			fmt.Errorf("unsafe-exports: %.64q is not known; use drop, refuse or allow", p.UnsafeExports)
	}
	return pass, unsafeExport(unsafe), nil
}

// unsafeExport is a treatment of unsafe exports.
type unsafeExport int

// The values of unsafeExport.
const (
	dropUnsafe unsafeExport = iota
	refuseUnsafe
	allowUnsafe
)

var unsafePolicies = []string{dropUnsafe: "drop", refuseUnsafe: "refuse", allowUnsafe: "allow"}

// unsafeExports are the variables that change every later program, and the runner's own variables in the blueprint's
// dialect.
var unsafeExports = []string{
	"LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "SHELLOPTS", "BASHOPTS",
	"OUTPUT_FILE", "ENV_FILE", "STEP_RUNNER_OUTPUT", "STEP_RUNNER_ENV", "STEP_JSON",
}

// passing is a parsed Policy.PassEnv.
type passing struct {
	base  passBase // the variables that pass, whatever names has
	names []string // more variables that pass
}

// passBase is a set of variables of the runner's environment.
type passBase int

// The values of passBase.
const (
	passBasic passBase = iota // variables that describe the machine, the user and the proxies
	passAll                   // all except URLs with a password and names that look like secrets
	passNone                  // no variables
)

func parsePassEnv(values []string) (passing, error) {
	var p passing
	for _, value := range values {
		switch {
		case value == "all" && p.base != passNone:
			p.base = passAll
		case value == "none" && p.base != passAll:
			p.base = passNone
		case value == "all" || value == "none":
			return p, errors.New("all and none exclude each other")
		case !lang.IsName(value):
			return p, fmt.Errorf("the variable name%s is not valid; write the name of a variable, all or none",
				lang.Quote(value))
		default:
			p.names = append(p.names, value)
		}
	}
	return p, nil
}

// passes reports whether the variable name, which has value, reaches the steps.
func (p passing) passes(name, value string) bool {
	switch {
	case slices.Contains(p.names, name):
		return true
	case slices.Contains(basicEnv, name):
		return p.base != passNone
	default:
		return p.base == passAll && lang.IsName(name) && !looksSecret(name) && !holdsPassword(value)
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

package gitlabdoor

import (
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// runnerFacts are facts about the runner that has a job. They are kept with it: its trace stays the same.
type runnerFacts struct {
	Token   string // shortened
	Version string // of stepmux
	Number  int    // of the job among those that the runner has now
	Image   string // of jobs without one
	CA      string // certificates of authorities that the VMs trust at the server, in PEM
}

var tokenBegin = regexp.MustCompile(`^glrt-(t[123]_)?|^t[123]_|^glrtr-`)

// shortToken is the length of a token that names the runner.
const shortToken = 9

// shorten returns the part of a token that names the runner, and opens nothing.
func shorten(token string) string {
	token = tokenBegin.ReplaceAllString(token, "")
	return token[:min(len(token), shortToken)]
}

// authorities is the variable with the file of the certificates that git and the transfers of artifacts trust.
const authorities = "CI_SERVER_TLS_CA_FILE"

// trust gives steps the file of the authorities. Scripts have it as one of their variables.
func trust(steps []step) {
	for i := range steps {
		if steps[i].Step != "builtin://"+lang.ManagerScriptStep {
			steps[i].Env = map[string]string{authorities: "${{ vars." + authorities + " }}"}
		}
	}
}

// added returns the variables that a runner adds: those before the job's own, which replace them, and those after.
func (p *payload) added(runner runnerFacts) (before, after []variable) {
	number := strconv.Itoa(runner.Number)
	before = []variable{
		{Key: "CI_RUNNER_SHORT_TOKEN", Value: runner.Token},
		{Key: "CI_BUILDS_DIR", Value: "$" + projectDirVariable + "/.."},
		{Key: "CI_CONCURRENT_ID", Value: number},
		{Key: "CI_CONCURRENT_PROJECT_ID", Value: number},
		{Key: "CI_SERVER", Value: "yes"},
		{Key: "CI_JOB_STATUS", Value: "running"},
		{Key: "CI_JOB_TIMEOUT", Value: strconv.Itoa(p.Runner.Timeout)},
		{Key: tokenVariable, Value: p.Token, Masked: true, Raw: true},
	}
	if runner.CA != "" {
		before = append(before, variable{Key: authorities, Value: runner.CA, File: true, Raw: true})
	}
	environment := "CI_SHARED_ENVIRONMENT"
	if p.Image.name() != "" {
		before = append(before, variable{Key: "CI_JOB_IMAGE", Value: p.Image.Name})
		environment = "CI_DISPOSABLE_ENVIRONMENT"
	}
	after = []variable{
		{Key: environment, Value: "true"},
		{Key: "CI_RUNNER_VERSION", Value: runner.Version},
		{Key: "CI_RUNNER_EXECUTABLE_ARCH", Value: runtime.GOOS + "/" + runtime.GOARCH},
	}
	return before, after
}

// tokenPrefixes are how GitLab's tokens begin. The flag allTokens takes all but the first out.
var tokenPrefixes = []string{
	"glpat-", "gloas-", "gldt-", "glrt-", "glcbt-", "glrtr-", "glptt-", "glft-", "glimt-", "glagent-", "glsoat-",
	"glffct-", "_gitlab_session=", "gltok-",
}

// maxPrefixes bounds the prefixes of a job, and minPrefix and maxPrefix the length of each, in bytes: a shorter one
// would hide words that are no tokens.
const maxPrefixes, minPrefix, maxPrefix = 64, 3, 256

// The flags of GitLab Runner that have an effect here.
const timesFlag, allTokensFlag = "FF_TIMESTAMPS", "FF_MASK_ALL_DEFAULT_TOKENS"

// maskPrefixes returns the beginnings of the tokens that are masked in the trace.
func (p *payload) maskPrefixes(vars *variables) []string {
	all := tokenPrefixes
	if !vars.yes(allTokensFlag, true) {
		all = all[:1]
	}
	all = slices.Concat(all, p.Features.MaskPrefixes)
	slices.Sort(all)
	all = slices.DeleteFunc(slices.Compact(all), func(prefix string) bool {
		return len(prefix) < minPrefix || len(prefix) > maxPrefix
	})
	return all[:min(len(all), maxPrefixes)]
}

// yes returns the value of a variable that says yes or no.
func (v *variables) yes(name string, otherwise bool) bool {
	is, err := strconv.ParseBool(v.get(name))
	if err != nil {
		return otherwise
	}
	return is
}

// shape returns the shape of the trace of the job, without the sections of its steps.
func (p *payload) shape(vars *variables, marks string) *shape {
	look := &shape{
		end: cleanupSection, sections: p.Features.Sections, stamps: vars.yes(timesFlag, true), notes: p.notes(vars),
	}
	if marks != "" {
		look.marks = jobdoor.MarkPrefix(marks)
	}
	for _, c := range p.Caches {
		if vars.expand(c.Policy) != "pull" && (len(c.Paths) > 0 || c.Untracked) {
			look.end = saveSection
		}
	}
	return look
}

// notes returns warnings about parts of the job that have no effect.
func (p *payload) notes(vars *variables) (notes []string) {
	if p.Image.name() == "" && len(p.Services) > 0 {
		names := []string{}
		for _, s := range p.Services {
			names = append(names, s.name())
		}
		notes = append(notes, "the services "+strings.Join(names, ", ")+
			" are not started: the job has no image, and services run beside the container of a job")
	}
	for _, s := range p.Services {
		if s.name() != "" && len(s.aliases()) > 1 {
			notes = append(notes, "the service "+s.name()+" has the alias "+s.aliases()[0]+" alone, the first of "+s.Alias)
		}
	}
	for _, name := range []string{"CI_DEBUG_TRACE", "CI_DEBUG_SERVICES"} {
		if vars.yes(name, false) {
			notes = append(notes, "the variable "+name+" has no effect here")
		}
	}
	return notes
}

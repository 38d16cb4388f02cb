package gitlabci

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// Artifacts describes the files that a job gives to others. The zero value is no files.
type Artifacts struct {
	// Paths and Exclude are patterns of paths, from the directory of the project.
	Paths, Exclude []string
	// Untracked adds the files that git does not track.
	Untracked bool
	// When is the outcome after which the files are taken: on_success, on_failure or always.
	When string
	// Dotenv are files with variables for later jobs; see [ParseDotenv]. JUnit are patterns of test reports. Both are
	// taken whatever the outcome.
	Dotenv, JUnit []string
}

// The keys of artifacts.
var artifactKeys = []string{
	"access", "exclude", "expire_in", "expose_as", "name", "paths", "public", "reports", "untracked", "when",
}

// readArtifacts reads the artifacts of the job, with its variables.
func (d *draft) readArtifacts(job *Job) {
	n := d.key("artifacts")
	if n == nil {
		return
	}
	t := d.file.tree
	if n.Kind != yaml.MappingNode {
		t.failf(n, "artifacts must be a mapping with paths or reports, not %s", describe(n))
		return
	}
	t.checkKeys(n, "artifacts", artifactKeys, "")
	e := d.file.expander(d.file.literal(d.file.literal(nil, job.Variables), job.inProject))
	fromProject := strings.NewReplacer(projectDir+"/", "", projectDir, ".")
	paths := func(of *yaml.Node, key string) (list []string) {
		value := find(of, key)
		if isNull(value) {
			return nil
		}
		for _, path := range d.texts("artifacts: "+key, value) {
			list = append(list, fromProject.Replace(e.expand(variable{at: value, value: path})))
		}
		return list
	}
	a := &job.Artifacts
	a.Paths, a.Exclude = paths(n, "paths"), paths(n, "exclude")
	a.Untracked = d.yes("artifacts: untracked", find(n, "untracked"), false)
	a.When = "on_success"
	if when := find(n, "when"); !isNull(when) {
		if a.When = when.Value; !slices.Contains([]string{"on_success", "on_failure", lang.Always}, a.When) {
			t.failf(when, "artifacts: when is on_success, on_failure or always")
		}
	}
	reports := find(n, "reports")
	var others []string
	for key := range entries(reports) {
		if key.Value != "dotenv" && key.Value != "junit" {
			others = append(others, "reports:"+key.Value)
		}
	}
	a.Dotenv, a.JUnit = paths(reports, "dotenv"), paths(reports, "junit")
	if len(others) > 0 {
		d.notices = append(d.notices, "artifacts not done here, but by a server: "+strings.Join(others, ", "))
	}
}

// The bounds of a dotenv report: those of GitLab, in bytes and variables.
const (
	maxDotenv     = 5 << 10
	maxDotenvVars = 150
)

// ParseDotenv returns the variables in a dotenv report. As in GitLab, each line is NAME=VALUE: there are no quotes, no
// comments and no empty lines, and of two values the last one counts.
func ParseDotenv(data []byte) ([]Variable, error) {
	switch {
	case len(data) > maxDotenv:
		return nil, fmt.Errorf("the file has more than %d bytes", maxDotenv)
	case !utf8.Valid(data):
		return nil, errors.New("the file is not valid UTF-8")
	}
	var list []Variable
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		name, value, found := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		switch {
		case !found:
			return nil, fmt.Errorf("line %d is not NAME=VALUE", number)
		case !lang.IsName(name):
			return nil, fmt.Errorf("line %d: the name is not valid; use letters, digits and _, not a digit first", number)
		case strings.Contains(value, "\x00"):
			return nil, fmt.Errorf("line %d: the value has a NUL byte", number)
		}
		list = slices.DeleteFunc(list, func(v Variable) bool { return v.Name == name })
		if list = append(list, Variable{name, value}); len(list) > maxDotenvVars {
			return nil, fmt.Errorf("the file has more than %d variables", maxDotenvVars)
		}
	}
	return list, nil
}

package gitlabci

import (
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// project has files by their paths.
type project map[string]string

func (p project) open(path string) ([]byte, error) {
	text, ok := p[path]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return []byte(text), nil
}

// config is for a project in /project with these files.
func (p project) config() Config {
	return Config{
		Open: p.open, List: func() ([]string, error) { return slices.Sorted(maps.Keys(p)), nil }, ProjectDir: "/project",
	}
}

// job reads a job of a valid file.
func job(t testing.TB, text, name string, files ...project) *Job {
	t.Helper()
	all := project{}
	for _, f := range files {
		all = f
	}
	file, err := Read("ci.yml", []byte(text), all.config())
	require.NoError(t, err)
	j, err := file.Job(name)
	require.NoError(t, err)
	return j
}

// wrong returns the mistake in the job j of a file, or in the file.
func wrong(text string, files project) string {
	file, err := Read("ci.yml", []byte(text), files.config())
	if err == nil {
		_, err = file.Job("j")
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

// script returns the text of a job's script.
func script(j *Job) string {
	for _, s := range j.Definition.GetSteps() {
		if s.GetName() == scriptStep {
			var lines []string
			for _, line := range s.GetInputs()["script"].GetListValue().GetValues() {
				lines = append(lines, line.GetStringValue())
			}
			return strings.Join(lines, "\n")
		}
	}
	return ""
}

func names(list []*pb.Step) []string {
	all := make([]string, len(list))
	for i, s := range list {
		all[i] = s.GetName() + " " + s.GetWhen()
	}
	return all
}

func values(j *Job) map[string]string {
	all := map[string]string{}
	for _, v := range j.Variables {
		all[v.Name] = v.Value
	}
	return all
}

// warnings returns the texts of a job's warnings.
func warnings(j *Job) (list []string) {
	for _, w := range j.Warnings {
		list = append(list, w.Error())
	}
	return list
}

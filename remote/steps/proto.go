package steps

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// FromProto compiles the steps of a request. The rules are those of [Parse]; errors name the field,
// as in "steps[2].env". The error is an [*Error].
func FromProto(list []*pb.Step) (*Definition, error) {
	at := place{path: "steps"}
	if len(list) > MaxSteps {
		return nil, at.errorf("%d steps are too many, at most %d are allowed", len(list), MaxSteps)
	}
	drafts := make([]draft, len(list))
	for i, s := range list {
		drafts[i] = draftOf(s, fmt.Sprintf("steps[%d]", i))
	}
	return compile(at, drafts, nil)
}

// draftOf is a request's step as a draft. In a request what is empty is not given.
func draftOf(s *pb.Step, path string) draft {
	field := func(name, text string) word {
		return word{at: place{path: path + "." + name}, text: text, given: text != ""}
	}
	d := draft{
		at:     place{path: path},
		name:   field("name", s.GetName()),
		script: field("script", s.GetScript()),
	}
	if s.GetStep() != "" {
		d.other = append(d.other, word{at: place{path: path + ".step"}, text: "step"})
	}
	if len(s.GetInputs()) > 0 {
		d.other = append(d.other, word{at: place{path: path + ".inputs"}, text: "inputs"})
	}
	for _, key := range slices.Sorted(maps.Keys(s.GetEnv())) {
		envAt := place{path: path + ".env"}
		d.env = append(d.env, pair{word{at: envAt, text: key}, word{at: envAt, text: s.GetEnv()[key]}})
	}
	if e := s.GetExec(); e != nil {
		d.exec = &draftExec{
			at:        place{path: path + ".exec"},
			commandAt: place{path: path + ".exec.command"},
			workDir:   field("exec.work_dir", e.GetWorkDir()),
		}
		for j, arg := range e.GetCommand() {
			d.exec.command = append(d.exec.command, word{
				at:   place{path: fmt.Sprintf("%s.exec.command[%d]", path, j)},
				text: arg,
			})
		}
	}
	return d
}

// Script makes a job of one step named script, which runs text. The text is a script as it stands:
// ${{ means nothing in it. field is what the error, an [*Error], calls it.
func Script(field, text string) (*Definition, error) {
	at := place{path: field}
	switch {
	case strings.TrimSpace(text) == "":
		return nil, at.errorf("the script is empty; write what the shell shall run")
	case strings.IndexByte(text, 0) >= 0:
		return nil, at.errorf("the script holds a NUL byte, which no shell can read")
	}
	return &Definition{Steps: []Step{{Name: "script", When: OnSuccess, Script: text}}}, nil
}

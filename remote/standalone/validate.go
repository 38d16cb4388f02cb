package standalone

import (
	"errors"
	"path/filepath"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// Verdict is the result of the check of a file, as JSON.
type Verdict struct {
	File string `json:"file"`
	// Kind is the kind that the file was read as: job, step or gitlab-ci.
	Kind   string    `json:"kind"`
	Valid  bool      `json:"valid"`
	Errors []Problem `json:"errors,omitempty"`
}

// Problem is a mistake in a file.
type Problem struct {
	// Where is the place, as file:line:column. Line and Column count from 1; they are 0 if the place is not known.
	Where   string `json:"where,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
}

func (p Problem) String() string {
	if p.Where == "" {
		return p.Message
	}
	return p.Where + ": " + p.Message
}

// The kinds of files.
const (
	kindJob      = "job"
	kindStep     = "step"
	kindGitLabCI = "gitlab-ci"
)

// Validate checks a file. It reports the first mistake of a job or of a step, and the first mistake in each job of a
// .gitlab-ci.yml. Of the files that a text refers to it reads only those that a .gitlab-ci.yml includes from workDir.
func Validate(name string, text []byte, format Format, workDir string) Verdict {
	v := Verdict{File: name}
	var errs []error
	if format == GitLabCI {
		v.Kind = kindGitLabCI
		errs = validateGitLabCI(Source{Name: name, Text: text, WorkDir: workDir})
	} else {
		var err error
		if v.Kind, err = validateSteps(name, text); err != nil {
			errs = []error{err}
		}
	}
	for _, err := range errs {
		v.Errors = append(v.Errors, problemOf(err))
	}
	v.Valid = len(errs) == 0
	return v
}

// Unreadable is the verdict on a file that could not be read.
func Unreadable(name string, err error) Verdict {
	return Verdict{File: name, Errors: []Problem{problemOf(err)}}
}

func problemOf(err error) Problem {
	if bad, ok := errors.AsType[*lang.Error](err); ok {
		return Problem{Where: bad.Where, Line: bad.Line, Column: bad.Column, Message: bad.Message}
	}
	return Problem{Message: err.Error()}
}

func validateGitLabCI(src Source) []error {
	file, err := openGitLabCI(src)
	if err != nil {
		return []error{err}
	}
	return file.Check()
}

// validateSteps checks a job, or the definition of a step: a file with the name of one, or with two documents.
func validateSteps(name string, text []byte) (kind string, err error) {
	base := filepath.Base(name)
	isStep := base == "func.yml" || base == "step.yml"
	if src, loadErr := lang.Load(name, text); loadErr == nil && len(src.Docs) > 1 {
		isStep = true
	}
	if isStep {
		_, err = lang.ParseStep(name, text)
		return kindStep, err
	}
	_, err = lang.ParseCalled(name, text)
	return kindJob, err
}

// Schema returns a JSON Schema of jobs and steps, for editors. It must not be changed.
func Schema() []byte { return lang.Schema() }

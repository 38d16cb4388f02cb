package standalone

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/pipeline"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Verdict is the result of the check of a file, as JSON.
type Verdict struct {
	File string `json:"file"`
	// Kind says how the file was read: as job, step, gitlab-ci, github or script.
	Kind   string    `json:"kind"`
	Valid  bool      `json:"valid"`
	Errors []Problem `json:"errors,omitempty"`
	// Warnings are about valid parts that may not do what their author expects.
	Warnings []Problem `json:"warnings,omitempty"`
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
	kindGitHub   = "github"
	kindScript   = "script"
)

// Validate checks a file. It reports the first mistake of a job or of a step; in a .gitlab-ci.yml, the first mistake of
// each job.
//
// The WorkDir of src is the directory of the job: files that a .gitlab-ci.yml includes are read from there, and local
// steps as far as a run would read them before its first step. The local steps of a step's definition are beside its
// file. As in a run, Predefined and Changed decide which files a .gitlab-ci.yml includes.
func Validate(ctx context.Context, src Source) Verdict {
	v := Verdict{File: src.Name}
	switch src.Format { //nolint:exhaustive // all other formats are steps
	case GitLabCI:
		v.gitLabCI(ctx, src)
	case GitHub:
		v.gitHub(src.Text, src.WorkDir)
	default:
		v.steps(ctx, src.Text, src.WorkDir)
	}
	v.Valid = len(v.Errors) == 0
	return v
}

// ValidateScript checks a shell script that is a job by itself. It does not parse the shell's language.
func ValidateScript(name, text string) Verdict {
	v := Verdict{File: name, Kind: kindScript}
	warnings, err := lang.VetScript(name, text)
	if err != nil {
		v.add(err)
	}
	v.warn(warnings)
	v.Valid = err == nil
	return v
}

// maxTold bounds the warnings that are told when a job begins.
const maxTold = 20

// WarningsToTell returns the lines to show about the warnings of a job that begins.
func WarningsToTell(warnings []Problem) (lines []string) {
	for _, w := range warnings[:min(len(warnings), maxTold)] {
		lines = append(lines, "warning: "+w.String())
	}
	if more := len(warnings) - maxTold; more > 0 {
		lines = append(lines, fmt.Sprintf("warning: %d more of this kind; stepmux validate lists all of them", more))
	}
	return lines
}

// Interpreter returns the name of the program that the first line of a script names, or "".
func Interpreter(script []byte) string { return lang.Interpreter(string(script)) }

// Unreadable returns the verdict on a file that could not be read.
func Unreadable(name string, err error) Verdict {
	return Verdict{File: name, Errors: []Problem{problemOf(err)}}
}

func problemOf(err error) Problem {
	if bad, ok := errors.AsType[*lang.Error](err); ok {
		return Problem{Where: bad.Where, Line: bad.Line, Column: bad.Column, Message: bad.Message}
	}
	return Problem{Message: err.Error()}
}

func (v *Verdict) add(errs ...error) {
	for _, err := range errs {
		v.Errors = append(v.Errors, problemOf(err))
	}
}

// Problems returns warnings of a text as problems.
func Problems(warnings []*lang.Error) (list []Problem) {
	for _, w := range warnings {
		list = append(list, problemOf(w))
	}
	return list
}

func (v *Verdict) warn(warnings []*lang.Error) {
	for _, p := range Problems(warnings) {
		if !slices.Contains(v.Warnings, p) { // jobs may share a step
			v.Warnings = append(v.Warnings, p)
		}
	}
}

func (v *Verdict) gitLabCI(ctx context.Context, src Source) {
	v.Kind = kindGitLabCI
	file, err := openGitLabCI(src)
	if err != nil {
		v.add(err)
		return
	}
	v.add(file.Check(func(name string, job *gitlabci.Job) error {
		v.warn(job.Warnings)
		if err := engine.Check(ctx, job.Definition, src.WorkDir); err != nil {
			return &lang.Error{Where: src.Name, Message: fmt.Sprintf("job %.64q: %v", name, err)}
		}
		return nil
	})...)
}

// gitHub checks the steps of a workflow, and the project's own actions that they use.
func (v *Verdict) gitHub(text []byte, workDir string) {
	v.Kind = kindGitHub
	w, err := action.ReadWorkflow(v.File, text)
	v.warn(w.Warnings())
	if err == nil {
		_, err = pipeline.New(GraphOf(w))
	}
	if err == nil {
		err = (&Workflow{Workflow: w, src: Source{Name: v.File, WorkDir: workDir}, calls: map[string]*called{}}).CheckCalls()
	}
	if err != nil {
		v.add(err)
		return
	}
	for _, ref := range w.Uses() {
		dir, isOwn := strings.CutPrefix(ref, lang.Self)
		if isOwn || strings.HasPrefix(ref, "./") {
			if _, err := action.LocalUses(filepath.Join(workDir, dir), ref); err != nil {
				v.add(err)
			}
		}
	}
}

// steps checks a job, or the definition of a step. A file is a definition if it has the name of one, or two documents.
// A file of two documents with another name may also be a job with inputs, whose local steps are in workDir.
func (v *Verdict) steps(ctx context.Context, text []byte, workDir string) {
	dirs := []string{workDir}
	v.Kind = kindJob
	if src, err := lang.Load(v.File, text); err == nil && len(src.Docs) > 1 {
		v.Kind, dirs = kindStep, []string{filepath.Dir(v.File), workDir}
	}
	if base := filepath.Base(v.File); base == "func.yml" || base == "step.yml" {
		v.Kind, dirs = kindStep, []string{filepath.Dir(v.File)}
	}
	def, warnings, err := lang.Vet(v.File, text, v.Kind == kindStep)
	v.warn(warnings)
	if err != nil {
		v.add(err)
		return
	}
	for _, dir := range dirs {
		if err = engine.Check(ctx, def, dir); err == nil {
			return
		}
	}
	v.add(&lang.Error{Where: v.File, Message: err.Error()})
}

// Schema returns a JSON Schema of jobs and steps, for editors. Do not change it.
func Schema() []byte { return lang.Schema() }

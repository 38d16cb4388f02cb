// Package answers keeps the answers to the questions that reading a .gitlab-ci.yml or a workflow asks about the project
// and its repository. A text with the same answers has the same jobs, on any machine.
//
// A [Set] that was made by [Learn] asks each new question once, by its [Questions], until Close. Another one knows only
// the answers that it has. A Set that learns is for one goroutine at a time, any other one is not changed.
package answers

import (
	"cmp"
	"errors"
	"fmt"
)

// Questions are the functions by which reading a text asks.
type Questions struct {
	// Open reads a file of the project, and Other one from another place. Other may be nil.
	Open, Other func(path string) ([]byte, error)
	// List returns the files of the project.
	List func() ([]string, error)
	// Changed returns the files that have changed since a base, nil if that is not known. May be nil.
	Changed func(base string) ([]string, error)
}

// Set has answers.
type Set struct {
	// Files are the files of the project that the text includes, and Elsewhere those from other places.
	Files, Elsewhere map[string]File
	// Listed are the files of the project. It is nil if that was not asked.
	Listed []string
	// Changed are the files that have changed, by the base with which they are compared.
	Changed map[string]Changes
	// HasElsewhere says that files from other places are not left out.
	HasElsewhere bool

	learn *Questions // asked for new answers; nil once all are known
}

// File is a file. If Missing is not empty, it says why there is no such file.
type File struct {
	Data    []byte
	Missing string
}

// Changes are files that have changed. Paths is nil if that is not known.
type Changes struct {
	Paths []string
	Error string
}

// Learn returns a set that asks for its answers. The caller calls Close before the set is used elsewhere.
func Learn(from Questions) *Set {
	return &Set{
		Files: map[string]File{}, Elsewhere: map[string]File{}, Changed: map[string]Changes{},
		HasElsewhere: from.Other != nil, learn: &from,
	}
}

// Close ends the learning: the set has the answers that it has now.
func (s *Set) Close() { s.learn = nil }

// ErrUnknown is the error of a question that was not asked before.
var ErrUnknown = errors.New("it was not sent along: it was not needed when the pipeline was submitted")

// Questions returns functions that take the answers of the set.
func (s *Set) Questions() Questions {
	to := Questions{Open: s.file(s.Files, false), List: s.list, Changed: s.changed}
	if s.HasElsewhere {
		to.Other = s.file(s.Elsewhere, true)
	}
	return to
}

// file returns a function that reads the files of a project, or those from elsewhere.
func (s *Set) file(known map[string]File, elsewhere bool) func(string) ([]byte, error) {
	return func(path string) ([]byte, error) {
		return s.read(known, path, func() ([]byte, error) {
			if elsewhere {
				return s.learn.Other(path)
			}
			return s.learn.Open(path)
		})
	}
}

// Read returns the text that a workflow calls by this reference. A set that learns asks for a new one.
func (s *Set) Read(reference string, ask func() ([]byte, error)) ([]byte, error) {
	return s.read(s.Files, reference, ask)
}

func (s *Set) read(known map[string]File, name string, ask func() ([]byte, error)) ([]byte, error) {
	answer, ok := known[name]
	if !ok && s.learn == nil {
		return nil, ErrUnknown
	}
	if !ok {
		data, err := ask()
		if answer.Data = data; err != nil {
			answer.Missing = cmp.Or(err.Error(), "it cannot be read")
		}
		known[name] = answer
	}
	if answer.Missing != "" {
		return nil, errors.New(answer.Missing)
	}
	return answer.Data, nil
}

func (s *Set) list() (paths []string, err error) {
	if s.Listed == nil && s.learn != nil {
		s.Listed, err = s.learn.List()
	}
	return s.Listed, err
}

func (s *Set) changed(base string) ([]string, error) {
	answer, ok := s.Changed[base]
	switch {
	case !ok && s.learn == nil:
		return nil, fmt.Errorf("compare with %.80q: %w", base, ErrUnknown)
	case !ok && s.learn.Changed != nil:
		var err error
		if answer.Paths, err = s.learn.Changed(base); err != nil {
			answer.Error = err.Error()
		}
		s.Changed[base] = answer
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	return answer.Paths, nil
}

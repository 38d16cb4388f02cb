package provenance

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/filesum"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// Signed is a verified statement or link, compared with the present files.
type Signed struct {
	// KeyID is the ID of the key that signed it.
	KeyID string `json:"key_id"`
	// Type is the type of its predicate, or link.
	Type string `json:"type"`
	// Name is the name of the step, in a link.
	Name string `json:"name,omitempty"`
	// Builder is the builder in the statement.
	Builder string `json:"builder,omitempty"`
	// Subjects are the files that it is about. Without other files, the trace is the subject.
	Subjects []SignedFile `json:"subjects"`
	// Trace is the trace from which it was made. It is nil for a link.
	Trace *SignedFile `json:"trace,omitempty"`
	// Differences are the parts that the trace would have made differently.
	Differences []string `json:"differences,omitempty"`
}

// SignedFile is a file in a statement.
type SignedFile struct {
	Name string `json:"name"`
	// Signed is its SHA-256 in the statement. Is is that of the present file, or empty if there is no such file.
	Signed string `json:"signed"`
	Is     string `json:"is,omitempty"`
}

// Same reports whether all files and parts are unchanged since they were signed.
func (s *Signed) Same() bool {
	return len(s.Differences) == 0 && !slices.ContainsFunc(s.Subjects, func(f SignedFile) bool { return !f.same() })
}

// same reports whether the file exists unchanged.
func (f SignedFile) same() bool { return f.Is == f.Signed && f.Is != "" }

// statement has the parts of a statement or a link that are compared with files.
type statement struct {
	Type          string `json:"_type"`
	Name          string `json:"name"`
	PredicateType string `json:"predicateType"`
	Subject       []file `json:"subject"`
	Predicate     struct {
		RunDetails struct {
			Builder struct {
				ID string `json:"id"`
			} `json:"builder"`
			Byproducts []file `json:"byproducts"`
		} `json:"runDetails"`
	} `json:"predicate"`
}

type file struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// Verify returns the statement or the link that k has signed in a DSSE envelope, compared with the files below dir and,
// if data is not nil, with the trace in data. The error is a [*SignatureError] if k has not signed it.
func (k *Key) Verify(envelope []byte, dir string, data []byte) (*Signed, error) {
	payload, err := k.open(envelope)
	if err != nil {
		return nil, err
	}
	var st statement
	if err := json.Unmarshal(payload, &st); err != nil {
		return nil, errors.New("the signed payload is not a statement of in-toto")
	}
	s := &Signed{KeyID: k.ID, Subjects: []SignedFile{}}
	switch {
	case st.Type == linkType:
		s.Type, s.Name = linkType, st.Name
	case st.PredicateType == SLSA && len(st.Predicate.RunDetails.Byproducts) > 0:
		s.Type, s.Builder = SLSA, st.Predicate.RunDetails.Builder.ID
		made := st.Predicate.RunDetails.Byproducts[0]
		s.Trace = &SignedFile{Name: made.Name, Signed: made.Digest[trace.SHA256]}
	default:
		return nil, fmt.Errorf("the statement is signed, and of a kind that stepmux does not write: %.100q", st.PredicateType)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("find subjects: %w", err)
	}
	defer root.Close()
	for _, subject := range st.Subject {
		f := SignedFile{Name: subject.Name, Signed: subject.Digest[trace.SHA256]}
		if s.Trace != nil && data != nil && f == *s.Trace {
			f.Is = fmt.Sprintf("%x", sha256.Sum256(data))
		} else if f.Is, err = filesum.SHA256(root.OpenFile, f.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read subject: %w", err)
		}
		s.Subjects = append(s.Subjects, f)
	}
	if data == nil {
		return s, nil
	}
	return s, s.compare(payload, data)
}

// compare compares the payload with the one that the trace in data would make.
func (s *Signed) compare(payload, data []byte) error {
	t, err := trace.Parse(data)
	if err != nil {
		return err
	}
	var again []byte
	if s.Trace == nil {
		again, err = s.link(t)
	} else {
		was := *s.Trace
		s.Trace.Is = fmt.Sprintf("%x", sha256.Sum256(data))
		cfg := Config{Builder: s.Builder, TraceName: s.Trace.Name, TraceDigest: s.Trace.Is}
		for _, f := range s.Subjects {
			if f.Name == was.Name && f.Signed == was.Signed {
				f.Signed = s.Trace.Is
			}
			cfg.Subjects = append(cfg.Subjects, Subject{f.Name, f.Signed})
		}
		again, err = Statement(t, cfg)
	}
	if err != nil {
		return err
	}
	var signed, is any
	if err := errors.Join(json.Unmarshal(payload, &signed), json.Unmarshal(again, &is)); err != nil {
		return err
	}
	s.difference("", signed, is)
	return nil
}

// link returns the link that t makes of the same step.
func (s *Signed) link(t *trace.Trace) (data []byte, err error) {
	err = fmt.Errorf("the trace has no command of a step %.100q", s.Name)
	walk(t.Identity.Steps, nil, func(step *trace.Step, names []string) {
		if step.Exec != nil && strings.Join(names, ".") == s.Name {
			data, err = signedLink(step, names)
		}
	})
	return data, err
}

// maxDifferences bounds the differences that are listed.
const maxDifferences = 100

// difference adds the differences at pointer.
func (s *Signed) difference(pointer string, signed, is any) {
	if was, ok := signed.(map[string]any); ok {
		if now, ok := is.(map[string]any); ok {
			all := maps.Clone(was)
			maps.Copy(all, now)
			for _, key := range slices.Sorted(maps.Keys(all)) {
				s.difference(pointer+"/"+key, was[key], now[key])
			}
			return
		}
	}
	if !reflect.DeepEqual(signed, is) && len(s.Differences) < maxDifferences {
		was, _ := json.Marshal(signed) // both come from JSON
		now, _ := json.Marshal(is)
		s.Differences = append(s.Differences, fmt.Sprintf("%s: signed %.200s, and the trace has %.200s", pointer, was, now))
	}
}

// Show writes s for people. It treats the texts in s as hostile.
func (s *Signed) Show(w io.Writer) error {
	var b bytes.Buffer
	line := func(format string, args ...any) { fmt.Fprintln(&b, termtext.Line(fmt.Sprintf(format, args...))) }
	line("signed by the key %s", s.KeyID)
	if s.Name != "" {
		line("a link of the step %s", s.Name)
	} else {
		line("%s of the builder %s", s.Type, s.Builder)
	}
	files := s.Subjects
	if s.Trace != nil && s.Trace.Is != "" {
		files = append(files, *s.Trace)
	}
	for i, f := range files {
		switch {
		case i == len(s.Subjects) && i > 0 && files[i-1] == f: // the trace is the subject itself
		case f.same():
			line("%s is as it was signed, sha256:%s", f.Name, f.Is)
		case f.Is == "":
			line("%s is missing; sha256:%s was signed", f.Name, f.Signed)
		default:
			line("%s differs: sha256:%s was signed, and it is sha256:%s", f.Name, f.Signed, f.Is)
		}
	}
	for _, d := range s.Differences {
		line("%s", d)
	}
	_, err := w.Write(b.Bytes())
	return err
}

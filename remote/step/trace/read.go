package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/mask"
)

const (
	// MaxSize bounds a trace that is written or read, in bytes.
	MaxSize = 128 << 20
	// maxDepth bounds the nesting of a trace.
	maxDepth = 1000
	// maxValues bounds the values of a trace, and maxSteps the steps and the runs of steps: each takes memory when it
	// is decoded, even if it is as short as {}.
	maxValues, maxSteps = 2 << 20, 64 << 10
)

// ErrID says that the id of a trace does not match its identity: it was changed.
var ErrID = errors.New("the trace's identity was changed after it was written: " +
	"it does not have the id that the trace says")

// errJSON begins the message about a text that a trace cannot be read from.
var errJSON = errors.New("the text is not valid JSON")

// sizeError says which limit a trace exceeds.
type sizeError string

func (e sizeError) Error() string { return string(e) }

// Read reads the trace in the file path, like Parse. It must be a regular file.
func Read(path string) (*Trace, error) {
	data, err := ReadFile(path)
	if err != nil {
		return nil, err
	}
	t, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// ReadFile returns the content of path, which must be a regular file of at most MaxSize.
func ReadFile(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a FIFO must not block
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	defer file.Close()
	var data []byte
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", path)
	case info.Size() > MaxSize:
		err = fmt.Errorf("%s has %d bytes, the limit is %d", path, info.Size(), MaxSize)
	default:
		data, err = io.ReadAll(io.LimitReader(file, MaxSize+1))
	}
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	return data, nil
}

// Parse reads a trace, checks its form, and verifies its id: the error is ErrID if it does not match the identity. Do
// not trust the contents: anybody can write a trace with a matching id.
func Parse(data []byte) (*Trace, error) {
	if len(data) > MaxSize {
		return nil, fmt.Errorf("read trace: it has %d bytes, the limit is %d", len(data), MaxSize)
	}
	if err := checkShape(data, maxValues); err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	if err := checkTokens(data); err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	canonical, err := rewrite(data)
	if err != nil {
		return nil, fmt.Errorf("read trace: %w: %w", errJSON, err)
	}
	t := &Trace{}
	if err := t.decode(canonical); err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	return t, nil
}

// checkShape checks the nesting of a trace before it is decoded, and that it has at most most values.
func checkShape(data []byte, most int) error {
	switch depth, values := expr.JSONShape(data); {
	case depth > maxDepth:
		return fmt.Errorf("the trace is nested deeper than %d", maxDepth)
	case values > most:
		return sizeError(fmt.Sprintf("the trace has more than %d values", most))
	default:
		return nil
	}
}

// checkTokens refuses a JSON text in which encoding/json would pass over something: a text that is not UTF-8, or an
// object with two values for a key. It also refuses a trace whose identity or rest has more than maxSteps steps. It
// counts the items of all lists of steps that encoding/json would read, so in any case of their names.
func checkTokens(data []byte) error {
	if !utf8.Valid(data) {
		return fmt.Errorf("%w: it has invalid UTF-8", errJSON)
	}
	type list struct {
		isSteps, isObject bool
		names             map[string]bool // of the object's members so far
		name              string          // of the next member, after a dot; empty if it was not read yet
	}
	var open []list
	steps := 0
	for d := json.NewDecoder(bytes.NewReader(data)); ; {
		token, err := d.Token()
		if err != nil {
			return nil //nolint:nilerr // it is the end, or json.Unmarshal reports it
		}
		var in list
		if len(open) > 0 {
			in = open[len(open)-1]
		}
		delim, _ := token.(json.Delim)
		if delim == '}' || delim == ']' {
			open = open[:len(open)-1]
			continue
		}
		if in.isObject && in.name == "" {
			name, _ := token.(string)
			if in.names[name] {
				return fmt.Errorf("%w: an object has two values for the key %.64q", errJSON, name)
			}
			if in.names == nil {
				in.names = map[string]bool{}
			}
			in.names[name] = true
			if len(open) == 1 {
				steps = 0 // the identity and the rest are counted separately
			}
			in.name = "." + name
			open[len(open)-1] = in
			continue
		}
		if in.isSteps {
			if steps++; steps > maxSteps {
				return fmt.Errorf("the trace has more than %d steps", maxSteps)
			}
		}
		if in.isObject {
			open[len(open)-1].name = ""
		}
		if delim == '{' || delim == '[' {
			open = append(open, list{
				isObject: delim == '{', isSteps: delim == '[' && in.isObject && strings.EqualFold(in.name, ".steps"),
			})
		}
	}
}

// decode reads a trace in its canonical form. It refuses data that is not a trace, traces of other versions, and
// unknown members.
func (t *Trace) decode(data []byte) error {
	var raw struct {
		Schema   *string
		ID       any
		Identity json.RawMessage
	}
	if err := json.Unmarshal(data, &raw); err != nil || raw.Schema == nil {
		return errors.New(`the file is not a trace, which is a JSON object with a "schema"`)
	}
	if *raw.Schema != Schema && *raw.Schema != SchemaV1 {
		return fmt.Errorf("the trace has the schema %.64q, and this version reads %q and %q only; "+
			"read it with the version of stepmux that wrote it, or a newer one", *raw.Schema, SchemaV1, Schema)
	}
	if raw.ID != idOf(raw.Identity) {
		return ErrID
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(t); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return t.check(raw.Identity)
}

// check finds mistakes in a trace. identity is the canonical identity from the file: encoding the decoded one must give
// the same bytes.
func (t *Trace) check(identity []byte) error {
	if t.Schema == SchemaV1 && t.Identity.Job.Text != (mask.Text{}) {
		return fmt.Errorf("the trace's job has a text, which %s does not know", SchemaV1)
	}
	understood, err := t.Identity.Canonical()
	if err != nil {
		return err
	}
	if !bytes.Equal(understood, identity) {
		return errors.New("the trace's identity is not written as this version writes it")
	}
	if t.Secrets != nil {
		return t.Secrets.Check()
	}
	return nil
}

package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/gowebpki/jcs"

	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/mask"
)

const (
	// MaxSize is the largest trace that is written or read, in bytes.
	MaxSize = 128 << 20
	// maxDepth is how deep a trace is nested at most.
	maxDepth = 1000
)

// ErrID tells that the id of a trace does not fit its identity: somebody has changed it.
var ErrID = errors.New("its identity was changed after it was written: it does not have the id that the trace says")

// Read reads the trace in the file path, as Parse does. The file must be a regular one.
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
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not hold us
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", path)
	case info.Size() > MaxSize:
		err = fmt.Errorf("%s has %d bytes, the limit is %d", path, info.Size(), MaxSize)
	}
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(file, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	return data, nil
}

// Parse reads a trace, checks its form, and verifies its id: the error is ErrID if that does not fit the identity. Do
// not trust the contents: anybody can write a trace with a fitting id.
func Parse(data []byte) (*Trace, error) {
	if len(data) > MaxSize {
		return nil, fmt.Errorf("read trace: it has %d bytes, the limit is %d", len(data), MaxSize)
	}
	if expr.JSONDepth(data) > maxDepth {
		return nil, fmt.Errorf("read trace: it is nested deeper than %d", maxDepth)
	}
	canonical, err := jcs.Transform(data) // which refuses what is no JSON, and a key that is there twice
	if err != nil {
		return nil, fmt.Errorf("read trace: it is not valid JSON: %w", err)
	}
	if err := checkSchema(canonical); err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	var raw struct {
		Schema   string          `json:"schema"`
		ID       string          `json:"id"`
		Identity json.RawMessage `json:"identity"`
		Volatile json.RawMessage `json:"volatile"`
		Secrets  json.RawMessage `json:"secrets"`
	}
	if err := decode(canonical, &raw); err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	if idOf(raw.Identity) != raw.ID {
		return nil, fmt.Errorf("read trace: %w", ErrID)
	}
	t := &Trace{}
	if err := decode(canonical, t); err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	if err := t.check(raw.Identity); err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	return t, nil
}

// checkSchema refuses data that is not a trace, and traces of other versions.
func checkSchema(data []byte) error {
	var about struct{ Schema *string }
	if err := json.Unmarshal(data, &about); err != nil || about.Schema == nil {
		return errors.New(`it is not a trace, which is a JSON object with a "schema"`)
	}
	if *about.Schema != Schema && *about.Schema != SchemaV1 {
		return fmt.Errorf("it has the schema %.64q, and this version reads %q and %q only; "+
			"read it with the version of stepmux that wrote it, or a newer one", *about.Schema, SchemaV1, Schema)
	}
	return nil
}

// check finds mistakes in a trace. identity is its canonical identity as it was read: written again it must be the
// same.
func (t *Trace) check(identity []byte) error {
	if t.Schema == SchemaV1 && t.Identity.Job.Text != (mask.Text{}) {
		return fmt.Errorf("its job has a text, which %s does not know", SchemaV1)
	}
	understood, err := t.Identity.Canonical()
	if err != nil {
		return err
	}
	if !bytes.Equal(understood, identity) {
		return errors.New("its identity is not written as this version writes it")
	}
	if t.Secrets != nil {
		return t.Secrets.Check()
	}
	return nil
}

// decode reads JSON, and refuses members that into does not have.
func decode(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return nil
}

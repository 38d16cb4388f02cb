package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
)

const (
	// maxEntries bounds the outputs or exports in one file.
	maxEntries = 10_000
	// maxLevels bounds the nesting of a value in a file.
	maxLevels = 64
	// maxResults bounds the outputs, exports and saved states of all steps of a job, in bytes: they stay in memory as
	// long as the job is kept.
	maxResults = 32 << 20
)

// entries are the values in a file, by name.
type entries map[string]expr.Value

// parseEntries reads a file with a line for each value: {"name": ..., "value": ...} or, in the blueprint's dialect,
// also name=value. The last value of a name counts.
func parseEntries(data []byte, v0 bool) (entries, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("the text is not valid UTF-8")
	}
	found := entries{}
	n, count := 0, 0
	for line := range bytes.Lines(data) {
		n++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || v0 && line[0] == '#' {
			continue
		}
		if count++; count > maxEntries {
			return nil, fmt.Errorf("line %d: there are more than %d values", n, maxEntries)
		}
		name, v, err := parseEntry(line, v0)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		found[name] = v
	}
	return found, nil
}

func parseEntry(line []byte, v0 bool) (string, expr.Value, error) {
	if line[0] == '{' {
		return parseJSONEntry(line)
	}
	name, value, found := strings.Cut(string(line), "=")
	if v0 && found && lang.IsName(name) {
		v, err := unquote(value)
		return name, v, err
	}
	form := `JSON such as {"name":"version","value":"1.2"}`
	if v0 {
		form = "NAME=value, or " + form
	}
	return "", expr.Value{}, errors.New("the line must be " + form)
}

func parseJSONEntry(line []byte) (string, expr.Value, error) {
	var fields map[string]json.RawMessage
	if err := decode(line, &fields); err != nil {
		return "", expr.Value{}, fmt.Errorf(`the line is not JSON such as {"name":"version","value":"1.2"}: %w`, err)
	}
	for _, key := range sortedkeys.Of(fields) {
		if key != "name" && key != "value" {
			return "", expr.Value{}, fmt.Errorf(`%.64q is unknown; a value has "name" and "value"`, key)
		}
	}
	for _, key := range []string{"name", "value"} {
		switch string(fields[key]) {
		case "":
			return "", expr.Value{}, fmt.Errorf("%q is missing", key)
		case "null":
			return "", expr.Value{}, fmt.Errorf("%q is null", key)
		}
	}
	var name string
	if err := json.Unmarshal(fields["name"], &name); err != nil {
		return "", expr.Value{}, errors.New(`"name" is not a string`)
	}
	if name == "" {
		return "", expr.Value{}, errors.New(`"name" is empty`)
	}
	v, err := parseValue(fields["value"])
	if err != nil {
		return "", expr.Value{}, fmt.Errorf(`"value" of %.64q: %w`, name, err)
	}
	return name, v, nil
}

// parseValue reads JSON.
func parseValue(data []byte) (expr.Value, error) {
	if depth, _ := expr.JSONShape(data); depth > maxLevels {
		return expr.Value{}, fmt.Errorf("the value is nested deeper than %d", maxLevels)
	}
	var v expr.Value
	err := json.Unmarshal(data, &v)
	return v, err
}

// decode reads one JSON text, all of data.
func decode(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(into); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("the JSON ends too early")
		}
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows it")
	}
	return nil
}

// unquote reads the value in NAME=value as a shell does, with or without quotes.
func unquote(value string) (expr.Value, error) {
	value = strings.TrimSpace(value)
	if value == "" || value[0] != '"' && value[0] != '\'' {
		return expr.New(value)
	}
	quote := value[0]
	if len(value) < 2 || value[len(value)-1] != quote {
		return expr.Value{}, errors.New("the quote is not closed")
	}
	value = value[1 : len(value)-1]
	if quote == '"' {
		value = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\$`, `$`, `\n`, "\n").Replace(value)
	}
	return expr.New(value)
}

// outputs returns the outputs that the command of a step with spec wrote to its file.
func (f *files) outputs(spec *pb.Spec, dialect pb.Definition_Dialect) (map[string]expr.Value, []string, error) {
	data, err := f.read("output")
	if err != nil {
		return nil, nil, err
	}
	if spec.GetSpec().GetDelegate() {
		outputs, err := delegated(data)
		return outputs, nil, err
	}
	v0 := dialect == pb.Definition_v0
	written, err := parseEntries(data, v0)
	if err != nil {
		return nil, nil, fmt.Errorf("read output file: %w", err)
	}
	if v0 {
		written.convert(spec)
	}
	return lang.BindOutputs(spec, dialect, written)
}

// convert converts the values that were written as NAME=value to the types of their outputs.
func (e entries) convert(spec *pb.Spec) {
	for name, v := range e {
		if v.Kind() != expr.String {
			continue
		}
		switch spec.GetSpec().GetOutputs()[name].GetType() { //nolint:exhaustive // other types keep the text
		case pb.Spec_number, pb.Spec_bool, pb.Spec_struct, pb.Spec_list:
			if typed, err := parseValue([]byte(v.Text())); err == nil {
				e[name] = typed
			}
		}
	}
}

// delegated reads the outputs of a command that passes on the outputs of another step: its file holds the result of
// that step.
func delegated(data []byte) (map[string]expr.Value, error) {
	var result struct {
		Outputs map[string]json.RawMessage `json:"outputs"`
	}
	if err := decode(data, &result); err != nil {
		return nil, fmt.Errorf(
			`read output file: it must be the result of a step, such as {"status":"success","outputs":{...}}: %w`, err)
	}
	outputs := make(map[string]expr.Value, len(result.Outputs))
	for _, name := range sortedkeys.Of(result.Outputs) {
		v, err := parseValue(result.Outputs[name])
		if err != nil {
			return nil, fmt.Errorf("read output file: output %.64q: %w", name, err)
		}
		outputs[name] = v
	}
	return outputs, nil
}

// exports returns the exports that the command of a step wrote to its file. policy says how to treat unsafe ones.
// dropped has a warning for each export that was left out.
func (f *files) exports(v0 bool, policy unsafeExport) (exports map[string]expr.Value, dropped []string, err error) {
	data, err := f.read("export")
	if err != nil {
		return nil, nil, err
	}
	written, err := parseEntries(data, v0)
	if err != nil {
		return nil, nil, fmt.Errorf("read export file: %w", err)
	}
	exports = make(map[string]expr.Value, len(written))
	var errs []error
	for _, name := range sortedkeys.Of(written) {
		v, err := exported(name, written[name])
		switch {
		case err != nil:
		case slices.Contains(unsafeExports, name) && policy == refuseUnsafe:
			err = errors.New("this variable changes what every later program does; set it in env where it is needed, or let " +
				"the operator allow it (--unsafe-exports allow)")
		case slices.Contains(unsafeExports, name) && policy == dropUnsafe:
			dropped = append(dropped, fmt.Sprintf("the export %s was dropped: it changes what every later program does; set "+
				"it in env where it is needed", name))
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("export %.64q: %w", name, err))
			continue
		}
		exports[name] = v
	}
	return exports, dropped, together(errs...)
}

func exported(name string, v expr.Value) (expr.Value, error) {
	switch v.Kind() {
	case expr.String, expr.Number, expr.Boolean:
	default:
		return v, fmt.Errorf("the value is of type %s; only a string, a number or a boolean can be exported",
			lang.TypeName(v.Kind()))
	}
	text, err := expr.New(v.Text())
	if err == nil {
		err = lang.CheckVariable(name, text.Text())
	}
	return text, err
}

// together joins errs in one line. It returns nil if there are no errors.
func together(errs ...error) error {
	err := errors.Join(errs...)
	if err == nil {
		return nil
	}
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}

// size estimates the memory of values, in bytes.
func size(values map[string]expr.Value) (n int) {
	for name, v := range values {
		n += len(name) + sizeOf(v)
	}
	return n
}

// valueSize is the cost of a value beside its text, in bytes.
const valueSize = 64

func sizeOf(v expr.Value) int {
	if v.Kind() == expr.String {
		return valueSize + len(v.Text())
	}
	n := valueSize
	for _, key := range v.Keys() {
		n += len(key)
	}
	for i := range v.Len() {
		n += sizeOf(v.Index(i))
	}
	return n
}

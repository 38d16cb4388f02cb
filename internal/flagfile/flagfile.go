// Package flagfile sets the flags of a command from a YAML file ([Apply]), and describes such a file ([Schema]).
package flagfile

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/yamltree"
)

const (
	// maxSize bounds a file, in bytes.
	maxSize = 1 << 20
)

// commandLineOnly are the flags that make no sense in a file.
var commandLineOnly = []string{"config", "config-schema", "check", "help"}

// Apply sets flags from a YAML file of at most 1 MiB: its keys are the names of flags. Flags that were given on the
// command line stay. Errors name the position in the file.
func Apply(fl *pflag.FlagSet, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	defer file.Close()
	text, err := boundedfile.ReadAll(file, name, maxSize)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	t, err := yamltree.Load(name, text, maxSize)
	r := &yamltree.Reader{Text: t, Rules: yamltree.Rules{
		MaxCost: 4 * maxSize, Unquoted: true, NoAliases: "write the value out",
	}}
	r.Fail(err)
	if len(t.Docs) == 0 {
		return r.Err // nil if the file is empty
	}
	if len(t.Docs) > 1 {
		r.Failf(nil, "the file has more than one YAML document")
	}
	setFlags(fl, r, r.Mapping(t.Docs[0], "the file"))
	return r.Err
}

// setFlags sets flags from the entries of a file.
func setFlags(fl *pflag.FlagSet, r *yamltree.Reader, entries []yamltree.Entry) {
	given := map[string]bool{} // given on the command line
	var names []string
	fl.VisitAll(func(f *pflag.Flag) {
		given[f.Name] = f.Changed
		if !slices.Contains(commandLineOnly, f.Name) {
			names = append(names, f.Name)
		}
	})
	for _, e := range entries {
		flag := fl.Lookup(e.Key)
		if flag == nil || slices.Contains(commandLineOnly, e.Key) {
			r.Failf(e.At, "%s", yamltree.Unknown(e.Key, "the file", names, ""))
			return
		}
		if own, ok := flag.Value.(Structured); ok {
			own.Read(r, e.Value)
			flag.Changed = true
			continue
		}
		values := []*yaml.Node{e.Value}
		if e.Value.Kind == yaml.SequenceNode && repeats(flag) {
			values = r.List(e.Value, e.Key)
		}
		for _, v := range values {
			value := r.String(v, e.Key)
			if r.Err != nil {
				return
			}
			if given[e.Key] {
				continue
			}
			if err := fl.Set(e.Key, value); err != nil {
				if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
					err = Cause(wrong)
				}
				r.Failf(v, "%s: %v", e.Key, err)
			}
		}
	}
}

// Structured is the value of a flag that is no text in a file. It cannot be given on the command line.
type Structured interface {
	pflag.Value
	// Read reads the value in a file. Mistakes go to r.
	Read(r *yamltree.Reader, n *yaml.Node)
	// Schema is the JSON Schema of the value, without a description.
	Schema() map[string]any
}

// Cause returns the mistake in the value of a flag, and the values that the flag takes.
func Cause(wrong *pflag.InvalidValueError) error {
	switch wrong.GetFlag().Value.Type() {
	case "int", "int64":
		return fmt.Errorf("%.40q: write a whole number", wrong.GetValue())
	case "bool":
		return fmt.Errorf("%.40q: write true or false", wrong.GetValue())
	default:
		return wrong.Unwrap()
	}
}

// Schema returns the JSON Schema (draft 2020-12) of the files that [Apply] takes for fl.
func Schema(fl *pflag.FlagSet, title string) map[string]any {
	keys := map[string]any{}
	fl.VisitAll(func(f *pflag.Flag) {
		if f.Hidden && !isOnlyInFile(f) || slices.Contains(commandLineOnly, f.Name) {
			return
		}
		types := []string{"string", "number"} // a duration, a name, or a port
		switch f.Value.Type() {
		case "bool":
			types = []string{"boolean"}
		case "int", "int64":
			types = []string{"integer"}
		}
		_, usage := pflag.UnquoteUsage(f)
		key := map[string]any{"description": usage, "type": types}
		if own, ok := f.Value.(Structured); ok {
			key = own.Schema()
			key["description"] = usage
		}
		if repeats(f) {
			key["type"] = append(types, "array")
			key["items"] = map[string]any{"type": types}
		}
		keys[f.Name] = key
	})
	return map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title,
		"type": "object", "properties": keys, "additionalProperties": false,
	}
}

// onlyInFile is the annotation of a flag that OnlyInFile was called for.
const onlyInFile = "only-in-file"

// OnlyInFile hides flags from the help of their command: they are keys of its file. On the command line they still
// work; see [Given].
func OnlyInFile(fl *pflag.FlagSet, names ...string) {
	for _, name := range names {
		_ = fl.SetAnnotation(name, onlyInFile, nil) // cannot fail: the flag exists
		fl.Lookup(name).Hidden = true
	}
}

func isOnlyInFile(f *pflag.Flag) bool {
	_, said := f.Annotations[onlyInFile]
	return said
}

// Given returns the names of the flags of OnlyInFile that were given on the command line. Call it before [Apply].
func Given(fl *pflag.FlagSet) (names []string) {
	fl.Visit(func(f *pflag.Flag) {
		if isOnlyInFile(f) {
			names = append(names, f.Name)
		}
	})
	return names
}

// repeated is the annotation of a flag that Repeat was called for.
const repeated = "repeated"

// Repeat says that a file may have a list for each of these flags. A flag whose value is a list needs no call.
func Repeat(fl *pflag.FlagSet, names ...string) {
	for _, name := range names {
		_ = fl.SetAnnotation(name, repeated, nil) // cannot fail: the flag exists
	}
}

// repeats reports whether a flag may be given more than once.
func repeats(f *pflag.Flag) bool {
	_, list := f.Value.(pflag.SliceValue)
	_, said := f.Annotations[repeated]
	return list || said
}

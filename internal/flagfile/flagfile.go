// Package flagfile sets the flags of a command from a YAML file ([Apply]), and describes such a file ([Schema]).
package flagfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/spell"
)

const (
	// maxSize bounds a file, in bytes, and maxDepth its nesting.
	maxSize, maxDepth = 1 << 20, 4
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
	loader, err := yaml.NewLoader(bytes.NewReader(text),
		yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxDepth))))
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	doc := new(yaml.Node)
	switch err := loader.Load(doc); {
	case errors.Is(err, io.EOF):
		return nil // the file is empty
	case err != nil:
		if bad, ok := errors.AsType[*yaml.LoadError](err); ok && bad.Mark.Line > 0 {
			return fmt.Errorf("%s:%d:%d: not valid YAML: %s", name, bad.Mark.Line, max(bad.Mark.Column, 1), bad.Message)
		}
		return fmt.Errorf("%s: not valid YAML: %w", name, err)
	}
	if err := loader.Load(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: it is more than one YAML document", name)
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return fmt.Errorf("%s:1:1: the file must be a mapping (flag: value)", name)
	}
	return setFlags(fl, name, doc.Content[0].Content)
}

// setFlags sets flags from the keys and values of a mapping.
func setFlags(fl *pflag.FlagSet, name string, content []*yaml.Node) error {
	fail := func(n *yaml.Node, format string, args ...any) error {
		return fmt.Errorf("%s:%d:%d: %s", name, n.Line, n.Column, fmt.Sprintf(format, args...))
	}
	given := map[string]bool{} // given on the command line
	var names []string
	fl.VisitAll(func(f *pflag.Flag) {
		given[f.Name] = f.Changed
		if !slices.Contains(commandLineOnly, f.Name) {
			names = append(names, f.Name)
		}
	})
	seen := map[string]bool{}
	for i := 0; i+1 < len(content); i += 2 {
		key, value := content[i], content[i+1]
		flag := fl.Lookup(key.Value)
		switch {
		case key.Kind != yaml.ScalarNode || flag == nil || slices.Contains(commandLineOnly, key.Value):
			hint := ""
			if near := spell.Nearest(key.Value, names); near != "" {
				hint = fmt.Sprintf(", did you mean %q?", near)
			}
			return fail(key, "unknown key %.80q%s", key.Value, hint)
		case seen[key.Value]:
			return fail(key, "the key %q stands here for the second time", key.Value)
		}
		seen[key.Value] = true
		values := []*yaml.Node{value}
		if value.Kind == yaml.SequenceNode && repeats(flag) {
			values = value.Content
		}
		for _, v := range values {
			if v.Kind != yaml.ScalarNode || v.ShortTag() == "!!null" {
				return fail(v, "%s must be a text, or a list of texts if the flag may repeat", key.Value)
			}
			if given[key.Value] {
				continue
			}
			if err := fl.Set(key.Value, v.Value); err != nil {
				if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
					err = Cause(wrong)
				}
				return fail(v, "%s: %v", key.Value, err)
			}
		}
	}
	return nil
}

// Cause returns what is wrong with the value of a flag, and which values it takes.
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

package lang

import (
	"bytes"
	"encoding/json"
	"flag"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/yamltree"
)

var update = flag.Bool("update", false, "write the schema")

const schemaFile = "schema/steps.schema.json"

type object = map[string]any

func TestSchemaIsThatOfTheParser(t *testing.T) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	require.NoError(t, e.Encode(makeSchema()))
	if *update {
		require.NoError(t, os.WriteFile(schemaFile, b.Bytes(), 0o644))
	}
	require.Equal(t, b.String(), string(Schema()), "run go generate")
}

func ref(name string) object { return object{"$ref": "#/$defs/" + name} }

func arrayOf(items any) object { return object{"type": "array", "items": items} }

// mapping returns the schema of an object with these properties and no others.
func mapping(properties object, required ...string) object {
	m := object{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		m["required"] = required
	}
	return m
}

func orNull(schema object) object { return object{"anyOf": []any{object{"type": "null"}, schema}} }

// only keeps the properties with the parser's keys, and fails if one is missing.
func only(properties object, keys []string) object {
	kept := object{}
	for _, key := range keys {
		if properties[key] == nil {
			panic("the schema has no " + key)
		}
		kept[key] = properties[key]
	}
	return kept
}

func has(keys ...string) object { return object{"required": keys} }

func not(schema object) object { return object{"not": schema} }

func when(condition, then object) object { return object{"if": condition, "then": then} }

func makeSchema() object {
	return object{
		"$schema":     "https://json-schema.org/draft/2020-12/schema",
		"title":       "Steps",
		"description": "A job, or one of the two documents of a step: its spec, and what it runs.",
		"anyOf":       []any{ref("job"), ref("spec"), ref("specV0"), ref("definition"), ref("definitionV0")},
		"$defs": object{
			"name":     object{"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "maxLength": maxName},
			"variable": object{"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
			"template": object{"type": "string", "pattern": `\$\{\{`},
			"timeout":  object{"type": "string", "pattern": timeoutPattern().String()},
			"env": orNull(object{"type": "object", "propertyNames": object{"anyOf": []any{
				ref("variable"),
				ref("template"),
			}}, "additionalProperties": object{"type": "string"}}),
			"values": orNull(object{
				"type":          "object",
				"propertyNames": object{"anyOf": []any{ref("name"), ref("template")}},
			}),
			"reference": object{"anyOf": []any{
				object{"type": "string", "minLength": 1}, longForm("git"), longForm("zip"), longForm("oci"),
			}},
			"exec":         execSchema(),
			"step":         stepSchema("steps", nil),
			"namedStep":    stepSchema("namedSteps", []string{"name"}),
			"steps":        object{"type": "array", "minItems": 1, "items": ref("step")},
			"namedSteps":   object{"type": "array", "minItems": 1, "items": ref("namedStep")},
			"job":          object{"anyOf": []any{ref("steps"), definitionSchema("steps")}},
			"definition":   object{"anyOf": []any{ref("steps"), definitionSchema("namedSteps")}},
			"definitionV0": definitionV0Schema(),
			"spec":         specSchema(false),
			"specV0":       specSchema(true),
		},
	}
}

func longForm(name string) object {
	parts := object{}
	for _, key := range longKeys[name] {
		parts[key] = object{"type": "string", "minLength": 1}
	}
	return mapping(object{name: mapping(parts, longRequired[name]...)}, name)
}

func execSchema() object {
	properties := only(object{
		"command": object{
			"type": "array", "minItems": 1, "items": object{"type": "string"},
			"prefixItems": []any{object{"type": "string", "minLength": 1}},
		},
		"work_dir": object{"type": "string"},
		"timeout":  ref("timeout"),
	}, execKeys)
	var twice []any
	for i, a := range workDirs {
		properties[a] = object{"type": "string"}
		for _, b := range workDirs[:i] {
			twice = append(twice, has(a, b))
		}
	}
	s := mapping(properties, "command")
	s["not"] = object{"anyOf": twice}
	return s
}

func stepSchema(list string, required []string) object {
	s := mapping(only(object{
		"name":    ref("name"),
		"step":    ref("reference"),
		"func":    ref("reference"),
		"script":  object{"type": "string", "pattern": `\S`},
		"exec":    ref("exec"),
		"run":     ref(list),
		"action":  object{"type": "string", "minLength": 1},
		"inputs":  orNull(object{"type": "object"}),
		"env":     ref("env"),
		"when":    object{"enum": whens},
		"if":      object{"type": []string{"string", "boolean"}},
		"timeout": ref("timeout"),
	}, stepKeys), required...)
	var one []any
	for _, way := range ways {
		one = append(one, has(way))
	}
	s["oneOf"] = one
	s["allOf"] = []any{
		when(not(has("action")), object{"properties": object{"inputs": ref("values")}}),
		when(has("script"), object{"properties": object{"inputs": object{"propertyNames": object{"const": inputShell}}}}),
		when(object{"anyOf": []any{has("exec"), has("run")}},
			object{"properties": object{"inputs": object{"maxProperties": 0}}}),
	}
	return s
}

func definitionSchema(list string) object {
	s := mapping(only(object{
		"run": ref(list), "exec": ref("exec"), "env": ref("env"), "outputs": ref("values"), "delegate": ref("name"),
	}, jobKeys))
	s["oneOf"] = []any{has("run"), has("exec")}
	s["if"] = has("exec")
	s["then"] = object{"properties": object{"outputs": object{"maxProperties": 0}}, "not": has("delegate")}
	return s
}

func definitionV0Schema() object {
	s := mapping(only(object{
		"type": object{"enum": definitionType}, "exec": ref("exec"), "steps": ref("steps"), "env": ref("env"),
	}, definitionV0), "type")
	var one []any
	for i, kind := range definitionType {
		one = append(one, object{
			"properties": object{"type": object{"const": kind}}, "required": []string{kind},
			"not": has(definitionType[1-i]),
		})
	}
	s["oneOf"] = one
	return s
}

func specSchema(v0 bool) object {
	in, out := inputKeys, outputKeys
	if v0 {
		in = inputKeysV0
	}
	variables := arrayOf(ref("variable"))
	content := mapping(only(object{
		"inputs":   params(in, v0),
		"outputs":  object{"anyOf": []any{object{"const": delegateWord}, params(out, v0)}},
		"requests": orNull(mapping(only(object{"env": variables, "vars": variables}, requestKeys))),
	}, specKeys))
	return orNull(mapping(object{"spec": orNull(content)}))
}

func params(keys []string, v0 bool) object {
	p := mapping(only(object{
		"type":        object{"enum": slices.Sorted(maps.Keys(types))},
		"default":     object{},
		"description": object{"type": "string"},
		"sensitive":   object{"type": "boolean"},
		"options":     arrayOf(object{"type": "string"}),
		"match":       object{"type": "string"},
	}, keys))
	jsonTypes := map[string]any{
		"string": "string", "number": "number", "boolean": "boolean", "struct": "object",
		"array": "array",
	}
	var checks []any
	for word, kind := range jsonTypes {
		var same []string
		for alias, t := range types {
			if t == types[word] {
				same = append(same, alias)
			}
		}
		slices.Sort(same)
		checks = append(checks, when(
			object{"properties": object{"type": object{"enum": same}}, "required": []string{"type"}},
			object{"properties": object{"default": object{"type": kind}}}))
	}
	slices.SortFunc(checks, func(a, b any) int { return strings.Compare(asJSON(a), asJSON(b)) })
	checks = append(checks, when(not(has("type")),
		object{"properties": object{"default": object{"type": []string{"string", "number", "boolean"}}}}))
	p["allOf"] = checks
	if !v0 {
		p["required"] = []string{"type"}
	} else {
		p = orNull(p)
	}
	return orNull(object{"type": "object", "propertyNames": ref("name"), "additionalProperties": p})
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// validator holds the schemas of the documents.
type validator map[string]*jsonschema.Schema

func newValidator(t testing.TB) validator {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("steps.json", doc))
	v := validator{}
	for _, name := range []string{"", "job", "spec", "specV0", "definition", "definitionV0"} {
		at := "steps.json"
		if name != "" {
			at += "#/$defs/" + name
		}
		v[name], err = c.Compile(at)
		require.NoError(t, err)
	}
	return v
}

// accepts reports whether the schema accepts a text: each document by its own schema and by that of any document.
func (v validator) accepts(text []byte, job bool) bool {
	docs, ok := documents(text)
	if !ok {
		return false
	}
	names := []string{"spec", "definition"}
	if job {
		names[1] = "job"
	}
	if len(docs) == 2 {
		if m, ok := docs[1].(object); ok && m["type"] != nil {
			names = []string{"specV0", "definitionV0"}
		}
	} else if job && len(docs) == 1 {
		names = names[1:]
	}
	if len(docs) != len(names) {
		return false
	}
	for i, doc := range docs {
		if v[names[i]].Validate(doc) != nil || v[""].Validate(doc) != nil {
			return false
		}
	}
	return true
}

// documents returns the documents of data as JSON, and false if data is not YAML.
func documents(data []byte) ([]any, bool) {
	t, err := Load("j", data)
	if err != nil {
		return nil, false
	}
	var docs []any
	budget := 2 * maxCost / 6 // an alias counts as a node, plus its target
	for _, n := range t.Docs {
		doc, ok := asAny(n, 0, &budget)
		if !ok {
			return nil, false
		}
		docs = append(docs, doc)
	}
	return docs, true
}

// asAny returns n as JSON, and false if it has no JSON form or at least budget nodes.
func asAny(n *yaml.Node, depth int, budget *int) (any, bool) {
	if *budget--; depth > 2*yamltree.MaxDepth || *budget < 0 {
		return nil, false // an alias of an alias, or of itself
	}
	switch n.Kind {
	case yaml.AliasNode:
		return asAny(n.Alias, depth+1, budget)
	case yaml.SequenceNode:
		list := []any{}
		for _, item := range n.Content {
			v, ok := asAny(item, depth+1, budget)
			if !ok {
				return nil, false
			}
			list = append(list, v)
		}
		return list, true
	case yaml.MappingNode:
		m := object{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			v, ok := asAny(n.Content[i+1], depth+1, budget)
			if !ok {
				return nil, false
			}
			m[n.Content[i].Value] = v
		}
		return m, true
	default:
		return scalar(n)
	}
}

// scalar returns n as JSON. A type that JSON lacks, such as a date, becomes a value that no property accepts.
func scalar(n *yaml.Node) (any, bool) {
	switch n.ShortTag() {
	case "!!str":
		return n.Value, true
	case "!!null":
		return nil, true
	case "!!bool":
		return n.Value == "true" || n.Value == "True" || n.Value == "TRUE", true
	case "!!int", "!!float":
		var f float64
		if n.Decode(&f) != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			return nil, false
		}
		return f, true
	default:
		return nil, false
	}
}

// agree fails if the schema refuses what the parser accepts.
func agree(t testing.TB, v validator, text []byte, job bool) {
	t.Helper()
	parse := ParseStep
	if job {
		parse = Parse
	}
	if _, err := parse("j", text); err != nil {
		return
	}
	if _, ok := documents(text); ok {
		require.True(t, v.accepts(text, job), "the schema refuses what the parser accepts:\n%s", text)
	}
}

//stepmux:faults engine | The schema accepts steps that do not compile, or refuses steps that do
//stepmux:with remote/step/lang.TestCorpusIsAcceptedOrRefused
func TestSchemaAgreesWithTheParser(t *testing.T) {
	v := newValidator(t)
	for _, file := range corpus(t) {
		t.Run(file.name, func(t *testing.T) {
			require.Equal(t, file.want == "" || file.beyond, v.accepts(file.text, file.job))
		})
	}
}

func TestSchemaAgreesWithTheParserOverTheCases(t *testing.T) {
	root := os.Getenv("STEPMUX_CASES")
	if root == "" {
		t.Skip("part missing: STEPMUX_CASES, the folder of the conformance cases")
	}
	v := newValidator(t)
	found := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".json" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var c struct {
			StepsYAML string `json:"steps_yaml"`
			Files     map[string]any
		}
		if err := json.Unmarshal(data, &c); err != nil {
			return err
		}
		if c.StepsYAML != "" {
			found++
			agree(t, v, []byte(c.StepsYAML), true)
		}
		for name, content := range c.Files {
			if text, ok := content.(string); ok && (strings.HasSuffix(name, ".yml") || strings.HasSuffix(name, ".yaml")) {
				found++
				agree(t, v, []byte(text), false)
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.NotZero(t, found)
}

func FuzzSchema(f *testing.F) {
	for _, file := range corpus(f) {
		f.Add(file.text, file.job)
	}
	v := newValidator(f)
	f.Fuzz(func(t *testing.T, text []byte, job bool) { agree(t, v, text, job) })
}

// corpusFile is a text of testdata: a job if its name begins with job, else a step.
type corpusFile struct {
	name   string
	text   []byte
	job    bool
	want   string // the error; empty if it is accepted
	beyond bool   // only the parser finds the error
}

// corpus reads testdata. The first line of a refused text is "# error: " and a part of the error. It is "# parser's
// error: " if the schema accepts the text.
func corpus(t testing.TB) []corpusFile {
	t.Helper()
	var files []corpusFile
	for _, dir := range []string{"accepted", "refused"} {
		paths, err := filepath.Glob(filepath.Join("testdata", dir, "*.yml"))
		require.NoError(t, err)
		require.NotEmpty(t, paths)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			file := corpusFile{name: path, text: text, job: strings.HasPrefix(filepath.Base(path), "job")}
			first, _, _ := strings.Cut(string(text), "\n")
			kind, want, found := strings.Cut(first, "error: ")
			require.Equal(t, dir == "refused", found && strings.HasPrefix(kind, "# "), path)
			if dir == "refused" {
				file.want, file.beyond = want, kind != "# "
			}
			files = append(files, file)
		}
	}
	return files
}

func TestCorpusIsAcceptedOrRefused(t *testing.T) {
	for _, file := range corpus(t) {
		t.Run(file.name, func(t *testing.T) {
			parse := ParseStep
			if file.job {
				parse = Parse
			}
			_, err := parse(filepath.Base(file.name), file.text)
			if file.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, file.want)
		})
	}
}

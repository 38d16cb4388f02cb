package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/stepmux/stepmux/internal/standalone"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
)

// restore returns the job that a trace describes.
func restore(job *trace.Job, s *secrets) (given standalone.Given, err error) {
	given.MayFail, given.Env, given.Inputs = job.MayFail, map[string]string{}, map[string]expr.Value{}
	compile, err := kept(job, s)
	if err != nil {
		return given, err
	}
	for _, name := range slices.Sorted(maps.Keys(job.Vars)) {
		v := job.Vars[name]
		value := s.text(v.Value, name, "/job/vars_used/"+pointerEscapes.Replace(name)+"/value")
		given.Vars = append(given.Vars, engine.Variable{Key: name, Value: value, File: v.File, Masked: v.Masked})
	}
	for _, name := range slices.Sorted(maps.Keys(job.Env)) {
		given.Env[name] = s.text(job.Env[name], name, "/job/run_env/"+pointerEscapes.Replace(name))
	}
	given.RunnerEnv = []string{} // all of it is in the trace
	passing := []string{"none"}
	for _, name := range slices.Sorted(maps.Keys(job.OSEnv)) {
		value := s.text(job.OSEnv[name], name, "/job/os_env/"+pointerEscapes.Replace(name))
		given.RunnerEnv = append(given.RunnerEnv, name+"="+value)
		passing = append(passing, name)
	}
	given.Policy = engine.Passing(passing...)
	for _, name := range slices.Sorted(maps.Keys(job.Inputs)) {
		if given.Inputs[name], err = input(job.Inputs[name], name, s); err != nil {
			return given, fmt.Errorf("input %.64q: %w", name, err)
		}
	}
	if given.Secrets, given.Notices, err = s.end(); err != nil {
		return given, err
	}
	if given.Definition, given.Steps, err = compile(); err != nil {
		return given, fmt.Errorf("the definition of the job: %w", err)
	}
	return given, check(&given)
}

// check refuses values that cannot come from a text or a command line.
func check(g *standalone.Given) error {
	if err := lang.CheckEnv("run_env", g.Env); err != nil {
		return err
	}
	if _, err := lang.Bind(g.Definition.GetSpec(), g.Inputs); err != nil {
		return err
	}
	for _, kv := range g.RunnerEnv {
		name, value, _ := strings.Cut(kv, "=")
		if err := lang.CheckVariable(name, value); err != nil {
			return fmt.Errorf("os_env: %w", err)
		}
	}
	return nil
}

// input returns the value of an input.
func input(v mask.Value, name string, s *secrets) (value expr.Value, err error) {
	if !v.Masked {
		return expandAll(v.Value, s.paths)
	}
	text := s.value(name, "/job/inputs/"+pointerEscapes.Replace(name), v.HMAC)
	if v.Type == "string" || slices.Contains(s.missing, name) {
		value, err = expr.New(text)
	} else if value.UnmarshalJSON([]byte(text)) != nil {
		err = fmt.Errorf("the secret must be JSON, since the input's type is %.16s", v.Type)
	}
	return value.MarkMasked(), err
}

// expandAll returns v with paths in place of markers.
func expandAll(v expr.Value, paths *recording.Paths) (expr.Value, error) {
	switch v.Kind() { //nolint:exhaustive // other kinds contain no text
	case expr.String:
		return expr.New(paths.Expand(v.Text()))
	case expr.Array:
		items := make([]expr.Value, v.Len())
		for i := range items {
			var err error
			if items[i], err = expandAll(v.Index(i), paths); err != nil {
				return v, err
			}
		}
		return expr.New(items)
	case expr.Object:
		fields := map[string]expr.Value{}
		for _, key := range v.Keys() {
			field, _ := v.Get(key)
			var err error
			if fields[paths.Expand(key)], err = expandAll(field, paths); err != nil {
				return v, err
			}
		}
		return expr.New(fields)
	default:
		return v, nil
	}
}

// kept collects the secrets in the steps of a job. compile returns the definition and its text, once the secrets are
// known. The definition is compiled from the text; in a trace of the first version, the text is made from the
// definition. compile refuses a definition that differs from the recorded one, or that no text compiles to.
func kept(job *trace.Job, s *secrets) (compile func() (*pb.Definition, string, error), err error) {
	if job.Text == (mask.Text{}) {
		def, err := definition(job.Definition, s)
		return func() (*pb.Definition, string, error) {
			text, err := lang.Format(def)
			return def, text, err
		}, err
	}
	text := job.Text.Value
	if job.Text.Masked {
		text = s.value("", "/job/text", job.Text.HMAC)
	}
	return func() (*pb.Definition, string, error) {
		def, err := lang.ParseKept("text", text)
		if err != nil {
			return nil, "", err
		}
		recorded, err := trace.DecodeDefinition(job.Definition)
		if errors.Is(err, trace.ErrMasked) {
			return def, text, nil
		}
		if err == nil && !proto.Equal(def, recorded) {
			err = errors.New("the recorded definition is not the one that the text of the job compiles to; was it changed?")
		}
		return def, text, err
	}, nil
}

// definition returns the definition in data.
func definition(data json.RawMessage, s *secrets) (*pb.Definition, error) {
	if len(data) == 0 {
		return nil, errors.New("the trace has no definition of the job: it could not be read, or was too large; " +
			"there is nothing to repeat")
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		return nil, fmt.Errorf("read the definition of the job: %w", err)
	}
	tree, err := unmask(tree, "/job/definition", s)
	if err != nil {
		return nil, err
	}
	if data, err = json.Marshal(tree); err != nil {
		return nil, fmt.Errorf("read the definition of the job: %w", err)
	}
	def := &pb.Definition{}
	if err := protojson.Unmarshal(data, def); err != nil {
		return nil, fmt.Errorf("read the definition of the job: %w", err)
	}
	return def, nil
}

var (
	pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")
	maskedKey      = regexp.MustCompile(`^\[MASKED ([0-9a-f]{16})\]$`)
)

// unmask returns v with its masked texts restored. pointer is its place.
func unmask(v any, pointer string, s *secrets) (any, error) {
	switch v := v.(type) {
	case []any:
		for i, item := range v {
			var err error
			if v[i], err = unmask(item, pointer+"/"+strconv.Itoa(i), s); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		if sum, isText := v["hmac"].(string); isText && len(v) == 2 && v["masked"] == true {
			return s.value("", pointer, sum), nil
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if maskedKey.MatchString(key) {
				return nil, fmt.Errorf("a key in %s of the definition holds a secret, which cannot be given; keep secrets out "+
					"of keys", pointer)
			}
			item, err := unmask(v[key], pointer+"/"+pointerEscapes.Replace(key), s)
			if err != nil {
				return nil, err
			}
			v[key] = item
		}
	}
	return v, nil
}

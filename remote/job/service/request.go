package service

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/lazyregexp"
	"github.com/stepmux/stepmux/internal/sortedkeys"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/lang"
	"github.com/stepmux/stepmux/remote/step/trace"
)

const (
	// maxPath is the longest path that the system accepts (PATH_MAX less the final NUL).
	maxPath = 4095
	// maxGrace is the longest grace that a job may ask for: a step runner that ends has to wait for it.
	maxGrace = time.Hour
)

// specOf checks req and returns the job that it asks for. The error names the field.
func specOf(req *pb.RunRequest) (job.Spec, error) {
	spec := job.Spec{ID: req.GetId(), WorkDir: req.GetWorkDir()}
	spec.Config = engine.Config{Env: req.GetEnv(), MayFail: req.GetMayFail()}
	err := check(&spec, map[string]string{
		"work_dir": spec.WorkDir, "steps_file": req.GetStepsFile(), "image": req.GetImage(),
	})
	if err != nil {
		return spec, err
	}
	if spec.Timeout, err = duration("timeout", req.GetTimeout()); err != nil {
		return spec, err
	}
	if spec.Grace, err = duration("grace", req.GetGrace()); err != nil {
		return spec, err
	}
	if spec.Grace > maxGrace {
		return spec, fmt.Errorf("grace: it can be %v at most", maxGrace)
	}
	if spec.PassEnv, err = engine.ParsePassEnv(req.GetPassEnv()); err != nil {
		return spec, fmt.Errorf("pass_env: %w", err)
	}
	if spec.UnsafeExports, err = engine.ParseUnsafeExports(cmp.Or(req.GetUnsafeExports(), "drop")); err != nil {
		return spec, fmt.Errorf("unsafe_exports: %w", err)
	}
	if spec.Vars, err = variablesOf(req.GetVariables()); err != nil {
		return spec, err
	}
	if spec.Definition, err = definitionOf(req); err != nil {
		return spec, err
	}
	if req.GetStepsYaml() != "" {
		spec.Places = lang.NewLocator(nameOf(req), []byte(req.GetStepsYaml()))
	}
	image := req.Image
	req.Image = "" // the next manager of a build may see another name of its image
	spec.Digest, err = digest(req)
	req.Image = image
	if err == nil && req.GetTrace() {
		spec.Trace, err = traceOf(req)
	}
	return spec, err
}

// traceOf returns the trace that req asks for. Its source is the text of the job or, for steps that came as messages,
// the encoded messages.
func traceOf(req *pb.RunRequest) (*job.TraceSpec, error) {
	text := []byte(req.GetStepsYaml() + req.GetCiScript()) // at most one of them is set
	if len(text) == 0 {
		var err error
		if text, err = encode(&pb.RunRequest{Steps: req.GetSteps()}); err != nil {
			return nil, err
		}
	}
	sum := sha256.Sum256(text)
	return &job.TraceSpec{
		Source: trace.Source{Kind: trace.FromGRPC, Digest: trace.Digest{trace.SHA256: hex.EncodeToString(sum[:])}},
		Text:   text, Steps: req.GetStepsYaml(), Image: req.GetImage(),
	}, nil
}

// digest returns the digest of a request. The store recognises a repeated request by it.
func digest(req proto.Message) ([sha256.Size]byte, error) {
	payload, err := encode(req)
	return sha256.Sum256(payload), err
}

func encode(req proto.Message) ([]byte, error) {
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	if err != nil {
		return nil, errors.New("the request cannot be encoded again")
	}
	return payload, nil
}

// idForm matches the id of a job. Its length is at most maxID bytes.
var idForm = lazyregexp.New(`^[A-Za-z0-9._-]+$`)

const maxID = 256

func validID(id string) bool { return len(id) <= maxID && idForm().MatchString(id) }

// check checks the fields that all requests for jobs have: the id, the environment, and paths, a map from a field's
// name to its value.
func check(spec *job.Spec, paths map[string]string) error {
	if !validID(spec.ID) {
		return errors.New("id: use 1 to 256 characters of A-Z a-z 0-9 . _ -")
	}
	for _, field := range sortedkeys.Of(paths) {
		if path := paths[field]; len(path) > maxPath || strings.IndexByte(path, 0) >= 0 {
			return fmt.Errorf("%s: use a path of at most %d bytes, without NUL", field, maxPath)
		}
	}
	return lang.CheckEnv("env", spec.Env)
}

// maxVariables bounds the values of a job's variables, in bytes.
const maxVariables = 8 << 20

// variablesOf checks a job's variables.
func variablesOf(list []*pb.Variable) ([]engine.Variable, error) {
	vars := make([]engine.Variable, len(list))
	seen := make(map[string]bool, len(list))
	total := 0
	for i, v := range list {
		switch key := v.GetKey(); {
		case !lang.IsName(key):
			return nil, fmt.Errorf("variables[%d].key: use letters, digits and _, not a digit first", i)
		case seen[key]:
			return nil, fmt.Errorf("variables[%d].key: an earlier variable has the same", i)
		}
		seen[v.GetKey()] = true
		if total += len(v.GetValue()); total > maxVariables {
			return nil, fmt.Errorf("variables: the values have more than %d bytes in all; put some into files of the project",
				maxVariables)
		}
		vars[i] = engine.Variable{Key: v.GetKey(), Value: v.GetValue(), File: v.GetFile(), Masked: v.GetMasked()}
	}
	return vars, nil
}

// nameOf returns the file name of req's steps_yaml for messages.
func nameOf(req *pb.RunRequest) string { return cmp.Or(req.GetStepsFile(), "steps_yaml") }

// definitionOf compiles the steps or the script of req.
func definitionOf(req *pb.RunRequest) (*pb.Definition, error) {
	isScript, isSteps, isYAML := req.GetCiScript() != "", len(req.GetSteps()) > 0, req.GetStepsYaml() != ""
	switch t := req.GetType(); {
	case t == pb.RunRequest_unknown:
		return nil, errors.New("type: say what the job is, step or script")
	case t != pb.RunRequest_script && t != pb.RunRequest_step:
		return nil, fmt.Errorf("type: %d is not known to this version; use step or script", t)
	case t == pb.RunRequest_script && (isSteps || isYAML):
		return nil, errors.New("type: a job of type script has ci_script, not steps or steps_yaml")
	case t == pb.RunRequest_script:
		return lang.Script("ci_script", req.GetCiScript())
	case isScript:
		return nil, errors.New("type: a job of type step has steps or steps_yaml, not ci_script")
	case isSteps && isYAML:
		return nil, errors.New("steps_yaml: the request has steps too; send one of them")
	case isYAML:
		return lang.Parse(nameOf(req), []byte(req.GetStepsYaml()))
	default:
		return lang.FromProto(req.GetSteps())
	}
}

// duration converts d, the value of field. It must not be negative.
func duration(field string, d *durationpb.Duration) (time.Duration, error) {
	if d != nil && d.CheckValid() != nil || d.AsDuration() < 0 {
		return 0, fmt.Errorf("%s: use a duration that is not negative", field)
	}
	return d.AsDuration(), nil
}

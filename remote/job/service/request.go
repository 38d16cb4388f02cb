package service

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/internal/lazyregexp"
	"github.com/stepmux/stepmux/internal/sortedkeys"
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
	asked, err := jobOf(req)
	spec := job.Spec{ID: req.GetId(), WorkDir: req.GetWorkDir(), Outputs: asked.GetOutputs()}
	if err != nil {
		return spec, err
	}
	spec.Config = engine.Config{
		Env: asked.GetEnv(), MayFail: asked.GetMayFail(), Policy: engine.PolicyOf(asked),
		Services: engine.Services{
			URL: asked.GetServices().GetUrl(), Token: asked.GetServices().GetToken(), Server: asked.GetServices().GetServer(),
			Relayed: asked.GetServices().GetRelayed(),
		},
	}
	spec.Marks, spec.MaskPrefixes = asked.GetMarks(), asked.GetMaskPrefixes()
	if err := checkServices(spec.Services); err != nil {
		return spec, err
	}
	err = check(&spec, map[string]string{
		"work_dir": spec.WorkDir, "steps_file": asked.GetStepsFile(), "image": req.GetImage(),
	})
	if err != nil {
		return spec, err
	}
	if spec.Timeout, err = duration("timeout", asked.GetTimeout()); err != nil {
		return spec, err
	}
	if spec.Grace, err = duration("grace", asked.GetGrace()); err != nil {
		return spec, err
	}
	if spec.Grace > maxGrace {
		return spec, fmt.Errorf("grace: it can be %v at most", maxGrace)
	}
	if err := spec.Policy.Check(); err != nil {
		return spec, err
	}
	if spec.Vars, err = variablesOf(asked.GetVariables()); err != nil {
		return spec, err
	}
	if spec.Definition, err = definitionOf(req, asked); err != nil {
		return spec, err
	}
	if len(asked.GetSteps()) > 0 {
		spec.Places = lang.NewLocator(nameOf(asked), asked.GetSteps())
	}
	image := req.Image
	req.Image = "" // the next manager of a build may see another name of its image
	spec.Digest, err = digest(req)
	req.Image = image
	if err == nil && req.GetTrace() {
		spec.Trace, err = traceOf(req, asked)
	}
	return spec, err
}

// minToken and maxToken bound the token of a job, in bytes: a shorter one could not be masked.
const minToken, maxToken = 16, 4096

// checkServices checks the services for a job's actions.
func checkServices(s engine.Services) error {
	if s.URL == "" && s.Token == "" {
		return nil
	}
	if at, err := url.Parse(s.URL); err != nil || at.Scheme != "http" || at.Host == "" || s.URL != "http://"+at.Host {
		return errors.New("services.url: use http://HOST:PORT")
	}
	if len(s.Token) < minToken || len(s.Token) > maxToken || strings.Trim(s.Token, tokenLetters) != "" {
		return fmt.Errorf("services.token: use %d to %d of A-Z a-z 0-9 . _ -", minToken, maxToken)
	}
	return nil
}

const tokenLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"

// errVersions refuses a request whose fields this version does not know: they may be what keeps the job safe.
var errVersions = errors.New("the request has fields that this step runner does not know: use the same version of " +
	"stepmux on the VM as for its manager")

// jobOf returns the job of req. For a request in the published form, it has what that form says beside its steps.
func jobOf(req *pb.RunRequest) (*pb.Job, error) {
	asked := req.GetJob()
	published := len(req.GetEnv()) > 0 || req.GetType() != 0 || len(req.GetSteps()) > 0 || req.GetCiScript() != ""
	switch {
	case len(req.ProtoReflect().GetUnknown())+len(asked.ProtoReflect().GetUnknown()) > 0:
		return nil, errVersions
	case asked == nil:
		return &pb.Job{Env: req.GetEnv(), Script: req.GetCiScript()}, nil
	case published:
		return nil, errors.New("job: the request also has env, type, steps or ci_script; put all of it into job")
	default:
		return asked, nil
	}
}

// traceOf returns the trace that req asks for. Its source is the text of the job or, for steps that came as messages,
// the encoded messages.
func traceOf(req *pb.RunRequest, asked *pb.Job) (*job.TraceSpec, error) {
	text := slices.Concat(asked.GetSteps(), []byte(asked.GetScript())) // at most one of them is set
	if len(text) == 0 {
		var err error
		if text, err = encode(&pb.RunRequest{Steps: req.GetSteps()}); err != nil {
			return nil, err
		}
	}
	sum := sha256.Sum256(text)
	return &job.TraceSpec{
		Source: trace.Source{Kind: trace.FromGRPC, Digest: trace.Digest{trace.SHA256: hex.EncodeToString(sum[:])}},
		Text:   text, Steps: string(asked.GetSteps()), Image: req.GetImage(),
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
		case !lang.IsVariable(key):
			return nil, fmt.Errorf("variables[%d].key: use letters, digits, _ and -, a letter first", i)
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

// nameOf returns the file name of a job's steps for messages.
func nameOf(asked *pb.Job) string {
	if asked.GetGenerated() {
		return "steps"
	}
	return cmp.Or(asked.GetStepsFile(), "steps")
}

// definitionOf compiles the steps or the script of req, which asks for the job asked.
func definitionOf(req *pb.RunRequest, asked *pb.Job) (*pb.Definition, error) {
	isScript, isSteps := asked.GetScript() != "", len(asked.GetSteps()) > 0
	switch t := req.GetType(); {
	case isScript && isSteps:
		return nil, errors.New("job: both steps and a script are given; send one of them")
	case isSteps:
		return lang.Parse(nameOf(asked), asked.GetSteps())
	case req.GetJob() != nil && !isScript:
		return nil, errors.New("job: neither steps nor a script is given")
	case req.GetJob() != nil:
		return lang.Script("script", asked.GetScript())
	case t == pb.RunRequest_unknown:
		return nil, errors.New("type: say what the job is, step or script")
	case t != pb.RunRequest_script && t != pb.RunRequest_step:
		return nil, fmt.Errorf("type: %d is not known to this version; use step or script", t)
	case t == pb.RunRequest_script && len(req.GetSteps()) > 0:
		return nil, errors.New("type: a job of type script has ci_script, not steps")
	case t == pb.RunRequest_script:
		return lang.Script("ci_script", asked.GetScript())
	case isScript:
		return nil, errors.New("type: a job of type step has steps, not ci_script")
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

package provenance

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/gowebpki/jcs"
	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stepmux/stepmux/remote/step/trace"
)

// The types of statements and predicates.
const (
	// SLSA is the type of the predicate of [Statement].
	SLSA = "https://slsa.dev/provenance/v1"
	// LinkType is the type of the predicate of a [Link].
	LinkType = "https://in-toto.io/attestation/link/v0.3"
	// BuildType names the meaning of the build's parameters. docs/trace.md describes them.
	BuildType = "https://github.com/stepmux/stepmux/steptrace/v1"
	// DefaultBuilder stands for an unknown builder.
	DefaultBuilder = "https://github.com/stepmux/stepmux"
)

// Config adds facts that a trace does not have.
type Config struct {
	// Builder is the URI of the trusted party that ran the job. If empty, DefaultBuilder.
	Builder string
	// TraceName and TraceDigest are the name of the trace's file, and its SHA-256 in hexadecimal.
	TraceName, TraceDigest string
	// Subjects are the files that the provenance is about. If empty, the file of the trace.
	Subjects []Subject
}

// Subject is a file.
type Subject struct {
	// Name is its path, relative to the job's directory.
	Name string
	// SHA256 is its digest in hexadecimal.
	SHA256 string
}

// CheckBuilder reports whether id can be Config.Builder.
func CheckBuilder(id string) error {
	if u, err := url.Parse(id); err != nil || !u.IsAbs() || u.User != nil {
		return fmt.Errorf("the builder's id %.100q is not a URI, such as https://ci.example.com/fleet", id)
	}
	return nil
}

// Statement returns the SLSA provenance of the job of t, in the canonical form of JSON (RFC 8785), with a newline at
// its end.
func Statement(t *trace.Trace, cfg Config) ([]byte, error) {
	cfg.Builder = cmp.Or(cfg.Builder, DefaultBuilder)
	if err := CheckBuilder(cfg.Builder); err != nil {
		return nil, err
	}
	external, err := structOf(json.Marshal(externalParameters(&t.Identity)))
	if err != nil {
		return nil, err
	}
	internal, err := structOf(json.Marshal(internalParameters(&t.Identity)))
	if err != nil {
		return nil, err
	}
	p := &slsa.Provenance{
		BuildDefinition: &slsa.BuildDefinition{
			BuildType:            BuildType,
			ExternalParameters:   external,
			InternalParameters:   internal,
			ResolvedDependencies: dependencies(&t.Identity),
		},
		RunDetails: &slsa.RunDetails{
			Builder: &slsa.Builder{Id: cfg.Builder, Version: map[string]string{"stepmux": t.Identity.Runtime.Runner.Version}},
			Metadata: &slsa.BuildMetadata{
				InvocationId: t.Volatile.TraceID,
				StartedOn:    timestamppb.New(t.Volatile.Started),
				FinishedOn:   timestamppb.New(t.Volatile.Ended),
			},
			Byproducts: append([]*intoto.ResourceDescriptor{
				{Name: cfg.TraceName, Digest: map[string]string{trace.SHA256: cfg.TraceDigest}, MediaType: "application/json"},
			}, logs(&t.Identity)...),
		},
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("write provenance: %w", err)
	}
	subjects := cfg.Subjects
	if len(subjects) == 0 {
		subjects = []Subject{{cfg.TraceName, cfg.TraceDigest}}
	}
	return encode(SLSA, p, subjects)
}

// externalParameters returns the parameters of the request for the job.
func externalParameters(id *trace.Identity) map[string]any {
	steps := make([]any, len(id.Steps))
	for i := range id.Steps {
		s := &id.Steps[i]
		about := map[string]any{"name": s.Name}
		if text := textOf(s.Reference.Text); text != "" {
			about["reference"] = text
		}
		steps[i] = about
	}
	vars, masked := map[string]any{}, []any{}
	for _, name := range sortedKeys(id.Job.Vars) {
		if v := id.Job.Vars[name]; v.Masked || v.Value.Masked {
			masked = append(masked, name)
		} else {
			vars[name] = v.Value.Value
		}
	}
	inputs := map[string]any{}
	for name, v := range id.Job.Inputs {
		inputs[name] = v.Value
		if v.Masked {
			inputs[name] = maskedText
		}
	}
	source := map[string]any{"kind": id.Job.Source.Kind, "digest": id.Job.Source.Digest}
	if id.Job.Source.JobName != "" {
		source["job_name"] = id.Job.Source.JobName
	}
	return map[string]any{"source": source, "steps": steps, "vars": vars, "masked_vars": masked, "inputs": inputs}
}

// internalParameters returns the parameters of the machine. From the environment it takes only the names.
func internalParameters(id *trace.Identity) map[string]any {
	return map[string]any{
		"runtime": id.Runtime,
		"os_env":  sortedKeys(id.Job.OSEnv),
		"run_env": sortedKeys(id.Job.Env),
	}
}

// encode returns a statement with this predicate about subjects.
func encode(kind string, predicate proto.Message, subjects []Subject) ([]byte, error) {
	about, err := structOf(protojson.Marshal(predicate))
	if err != nil {
		return nil, err
	}
	s := &intoto.Statement{Type: intoto.StatementTypeUri, PredicateType: kind, Predicate: about}
	for _, subject := range subjects {
		s.Subject = append(s.Subject, descriptor(subject.Name, "", subject.SHA256))
	}
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("write provenance: %w", err)
	}
	data, err := canonical(protojson.Marshal(s))
	return append(data, '\n'), err
}

// canonical returns JSON in its canonical form (RFC 8785). It returns err unchanged if that is not nil.
func canonical(data []byte, err error) ([]byte, error) {
	if err == nil {
		data, err = jcs.Transform(data)
	}
	if err != nil {
		return nil, fmt.Errorf("write provenance: %w", err)
	}
	return data, nil
}

// structOf converts JSON to a message. It returns err unchanged if that is not nil.
func structOf(data []byte, err error) (*structpb.Struct, error) {
	s := &structpb.Struct{}
	if err == nil {
		err = protojson.Unmarshal(data, s)
	}
	if err != nil {
		return nil, fmt.Errorf("write provenance: %w", err)
	}
	return s, nil
}

package recording

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// Trace returns the trace of the job that ended with result and ran from started to ended. Call it after Run has
// returned, or if Run is never called. It masks all secrets that are known by then.
func (c *Recorder) Trace(result engine.Result, started, ended time.Time) *trace.Trace {
	c.Close()
	c.own.Wait()
	c.makeRoom(valuesSize(result.Outputs) + valuesSize(result.Exports))
	t := &tracer{Recorder: c, redactor: mask.NewRedactor(c.job.Secrets, c.cfg.Salt), paths: c.paths("")}
	return t.trace(result, started, ended)
}

// tracer makes a trace from a Recorder.
type tracer struct {
	*Recorder
	redactor *mask.Redactor
	paths    Paths // of the current step
	t        *trace.Trace
	spent    int64 // on steps
	cut      bool  // some data is left out
}

func (t *tracer) trace(res engine.Result, started, ended time.Time) *trace.Trace {
	host, _ := os.Hostname()
	t.t = &trace.Trace{Volatile: trace.Volatile{
		TraceID: newUUID(), Started: started.UTC(), Ended: ended.UTC(), Host: host, PID: os.Getpid(),
		Message: t.message(res.Message), Paths: map[string]string{trace.WorkDir: t.place.WorkDir}, Steps: []trace.StepRun{},
	}}
	for _, c := range t.roots {
		t.t.Volatile.Paths[trace.CacheDir+"/"+bareHex(c.Tree)] = c.Root
	}
	def := t.job.Definition
	t.hideReferences(def)
	for _, rec := range t.Recorder.steps {
		t.hideReferences(rec.body)
	}
	id := &t.t.Identity
	id.Job = t.jobOf()
	id.Runtime = Runtime(t.cfg.Version)
	id.Runtime.Image = t.cfg.Image
	id.Status, id.Reason = res.Status.String(), reasonOf(res)
	id.ExitCode = trace.ExitCode(id.Status, res.ExitCode)
	id.Outputs, id.Exports = t.values(res.Outputs), t.values(res.Exports)
	id.Steps = t.steps(def, res.Steps, "")
	if t.cut || t.short != nil {
		why := cmp.Or(t.short, fmt.Errorf("the trace has more than %d bytes of it", maxRecorded))
		t.t.Volatile.Warnings = append(t.t.Volatile.Warnings, "steps marked as truncated lack large data: "+why.Error())
	}
	t.t.Volatile.Versions = t.sums.versions
	t.t.Secrets = t.redactor.Salt()
	return t.t
}

// jobOf returns the job as it was requested.
func (t *tracer) jobOf() trace.Job {
	j := trace.Job{
		Source: t.cfg.Source, MayFail: slices.Clone(t.job.MayFail), Dialect: t.job.Definition.GetDialect().String(),
		Inputs: t.values(t.job.Inputs), Env: mask.Texts{}, OSEnv: t.texts(t.osEnv), Vars: map[string]trace.Variable{},
	}
	var secret bool
	j.Definition, secret = t.definition(t.job.Definition)
	j.Text = t.jobText(secret)
	for name, value := range t.job.Env {
		j.Env[t.message(name)] = t.text(value, false)
	}
	if t.job.Secrets.Holds(string(t.cfg.Text)) {
		j.Source.Digest = nil
	}
	for _, v := range t.job.Vars {
		if t.read[v.Key] {
			j.Vars[v.Key] = trace.Variable{Value: t.text(v.Value, v.Masked), File: v.File, Masked: v.Masked}
		}
	}
	return j
}

// steps returns the steps of def with their results.
func (t *tracer) steps(def *pb.Definition, results []engine.StepResult, path string) []trace.Step {
	list := make([]trace.Step, 0, len(results))
	for i := range min(len(def.GetSteps()), len(results)) {
		if t.spent += stepCost; t.spent > maxRecorded {
			t.cut = true
			break
		}
		at := strings.TrimPrefix(fmt.Sprintf("%s.%d", path, i), ".")
		list = append(list, t.step(def.GetSteps()[i], &results[i], at))
	}
	return list
}

// step is one step.
func (t *tracer) step(s *pb.Step, res *engine.StepResult, path string) trace.Step {
	rec := t.Recorder.steps[res]
	if rec == nil {
		rec = &stepRecord{}
	}
	t.paths = t.Recorder.paths(rec.filesDir)
	step := trace.Step{
		Path: path, Name: t.message(res.Name), Kind: rec.kind, Status: res.Status.String(), When: s.GetWhen(),
		Component: t.found(rec.component), Truncated: rec.cut,
	}
	step.ExitCode = trace.ExitCode(step.Status, res.ExitCode)
	t.reference(s, &step)
	if s.GetCondition() != "" {
		step.Condition.Expr, step.Condition.Value = t.text(s.GetCondition(), false), rec.condition
	}
	if rec.def != nil {
		step.Definition, _ = t.definition(rec.def)
	}
	step.Inputs, step.EnvSet = t.values(rec.inputs), t.texts(rec.envSet)
	step.Env = t.env(rec)
	if !rec.cut {
		step.Outputs, step.Exports = t.values(res.Outputs), t.values(res.Exports)
	}
	step.Exec = t.exec(rec)
	if res.Summary != "" {
		step.Summary = t.text(res.Summary, false)
	}
	for _, a := range res.Annotations {
		a.Message, a.Title, a.File = t.message(a.Message), t.message(a.Title), t.paths.Mark(t.message(a.File))
		step.Annotations = append(step.Annotations, a)
	}
	run := trace.StepRun{
		Path: path, Started: res.Started.UTC(), Ended: res.Finished.UTC(), PID: rec.pid, MaxRSS: rec.exit.MaxRSS,
		UserMS: ms(rec.exit.UserTime), SystemMS: ms(rec.exit.SystemTime), Cache: rec.cache,
		Message: t.message(res.Message),
	}
	for _, text := range res.Warnings {
		run.Warnings = append(run.Warnings, t.message(text))
	}
	if rec.exec != nil {
		step.Logs.Stdout, run.Stdout = rec.parts[0].log()
		step.Logs.Stderr, run.Stderr = rec.parts[1].log()
	}
	if !res.Started.IsZero() {
		t.t.Volatile.Steps = append(t.t.Volatile.Steps, run)
	}
	t.cut = t.cut || rec.cut
	if len(res.Steps) > 0 {
		step.Steps = t.steps(rec.body, res.Steps, path)
		step.Truncated = rec.cut || len(step.Steps) < len(res.Steps)
	}
	return step
}

// exec returns the command of the step.
func (t *tracer) exec(rec *stepRecord) *trace.Exec {
	if rec.exec == nil {
		return nil
	}
	e := *rec.exec
	e.Argv = make([]mask.Text, len(rec.argv))
	for i, arg := range rec.argv {
		e.Argv[i] = t.text(arg.Text(), arg.Sensitive())
	}
	e.WorkDir = t.text(rec.dir, false)
	e.Program, e.Interpreter = t.program(rec.program), t.program(rec.interpreter)
	return &e
}

func (t *tracer) program(p program) *trace.Program {
	if p.path == "" {
		return nil
	}
	return &trace.Program{Path: t.text(p.path, false), Digest: sumDigest(p.digest)}
}

// env returns the environment of the step's process.
func (t *tracer) env(rec *stepRecord) mask.Texts {
	env := make(mask.Texts, len(rec.env))
	for _, kv := range rec.env { // the last entry of a name counts
		name, value, _ := strings.Cut(kv, "=")
		env[t.message(name)] = t.text(value, rec.envOf[name].Sensitive())
	}
	return env
}

// found returns a component with its secrets masked and its paths marked.
func (t *tracer) found(c *trace.Component) *trace.Component {
	if c == nil {
		return nil
	}
	k := *c
	for _, field := range []*string{&k.Location, &k.Version, &k.ResolvedRef, &k.Dir, &k.File} {
		*field = t.message(t.paths.Mark(*field))
	}
	return &k
}

// reference sets the reference of step, as it was written.
func (t *tracer) reference(s *pb.Step, step *trace.Step) {
	ref := s.GetReference()
	if ref == nil {
		return
	}
	text := s.GetStep()
	if text == "" {
		text = longForm(ref)
	}
	step.Reference.Text, step.Reference.Dynamic = t.text(text, false), ref.GetProtocol() == pb.Reference_dynamic
}

// longForm returns a reference in its long form, as JSON.
func longForm(ref *pb.Reference) string {
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(ref)
	var tree any
	if err == nil && json.Unmarshal(data, &tree) == nil {
		data, _ = json.Marshal(tree) // unlike the first JSON, this one has a fixed order
	}
	return string(data)
}

// definition returns def for a trace, or nil if it cannot be encoded. secret says that a text of it was masked.
func (t *tracer) definition(def *pb.Definition) (data json.RawMessage, secret bool) {
	if def == nil {
		return nil, false
	}
	data, err := trace.EncodeDefinition(def, func(text string) mask.Text {
		m := t.redactor.Text(text, text, false)
		secret = secret || m.Masked
		return m
	})
	if err != nil {
		t.warn(err)
		return nil, secret
	}
	return data, secret
}

// jobText returns the text of the job's steps. If secret is set, it masks all of it: the definition has a secret, which
// may be written in another form in the text.
func (t *tracer) jobText(secret bool) mask.Text {
	text := t.cfg.Steps
	if text == "" {
		var err error
		if text, err = lang.Format(t.job.Definition); err != nil {
			t.warn(err)
			return mask.Text{}
		}
	}
	return t.redactor.Text(text, text, secret)
}

func (t *tracer) warn(err error) {
	t.t.Volatile.Warnings = append(t.t.Volatile.Warnings, t.message(err.Error()))
}

// hideReferences masks the references in def that contain credentials.
func (t *tracer) hideReferences(def *pb.Definition) {
	for _, s := range def.GetSteps() {
		t.hideReferences(s.GetDefinition())
		for _, text := range []string{s.GetStep(), s.GetReference().GetUrl(), s.GetReference().GetText()} {
			t.redactor.HideReference(text)
		}
	}
}

// text returns a text for a trace.
func (t *tracer) text(text string, sensitive bool) mask.Text {
	return t.redactor.Text(text, t.paths.Mark(text), sensitive)
}

func (t *tracer) texts(l map[string]expr.Value) mask.Texts {
	all := make(mask.Texts, len(l))
	for name, v := range l {
		all[t.message(name)] = t.text(v.Text(), v.Sensitive())
	}
	return all
}

func (t *tracer) values(values map[string]expr.Value) mask.Values {
	all := make(mask.Values, len(values))
	for name, v := range values {
		all[t.message(name)] = t.value(v)
	}
	return all
}

// value returns a value for a trace.
func (t *tracer) value(v expr.Value) mask.Value { return t.redactor.Value(v, t.mark(v)) }

// mark returns v with markers for the paths in its texts.
func (t *tracer) mark(v expr.Value) expr.Value {
	if !strings.ContainsAny(v.Text(), "/@") {
		return v
	}
	marked, err := expr.New(t.markAny(v.Any()))
	if err != nil {
		return v // it has become too large
	}
	return marked
}

func (t *tracer) markAny(v any) any {
	switch v := v.(type) {
	case string:
		return t.paths.Mark(v)
	case []any:
		for i := range v {
			v[i] = t.markAny(v[i])
		}
	case map[string]any:
		for _, key := range sortedkeys.Of(v) {
			v[key] = t.markAny(v[key])
		}
	}
	return v
}

// message returns a text for people, with secrets masked.
func (t *tracer) message(text string) string { return t.job.Secrets.Message(text) }

// Runtime describes this machine and this program, whose version is given, for a trace.
func Runtime(version string) trace.Runtime {
	r := trace.Runtime{OS: runtime.GOOS, Arch: runtime.GOARCH}
	r.Runner.Version, r.Runner.Digest = version, sumDigest(ownDigest())
	return r
}

// reasonOf returns why a job failed or was cancelled.
func reasonOf(r engine.Result) string {
	switch {
	case r.Status == engine.Success:
		return ""
	case r.Status == engine.Cancelled:
		return "cancelled"
	case r.Invalid:
		return "invalid"
	case r.TimedOut:
		return "timeout"
	case r.System:
		return "system"
	default:
		return "script"
	}
}

func sumDigest(sum string) trace.Digest {
	if sum == "" {
		return nil
	}
	return trace.Digest{trace.SHA256: sum}
}

func bareHex(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

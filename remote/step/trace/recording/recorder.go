package recording

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/mask"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// Config has the parts of a trace that are not in the events of its job.
type Config struct {
	// Source is the origin of the job's text. Its digest is left out of the trace if Text contains a secret.
	Source trace.Source
	Text   []byte
	// Steps is a text that compiles to the job's definition. If empty, the text is that of [lang.Format].
	Steps string
	// Version is the version of this program.
	Version string
	// Image is the Image of [trace.Runtime].
	Image string
	// Salt is for the HMACs of masked values. If nil, a new one.
	Salt *mask.Salt
	// Room is called with the largest size that the trace may reach, in bytes, each time that grows. If it returns an
	// error, all large data from then on is left out. May be nil.
	Room func(size int64) error
}

// Recorder keeps the events of one job for its trace. It keeps them unmasked, because only at the end of the job all
// secrets are known.
type Recorder struct {
	cfg   Config
	job   engine.Config
	taps  [2]*Tap
	steps map[*engine.StepResult]*stepRecord
	order []*stepRecord   // in the order in which the steps began
	read  map[string]bool // names of variables
	roots []*component.Component
	sums  sums
	size  int64 // of the kept data
	room  int64 // that was requested
	limit int64
	short error // why there is no more room
	own   sync.WaitGroup
	place engine.Place
	osEnv map[string]expr.Value
	// realWork and realTemp are the directories of place without symbolic links. They are empty if the paths have no
	// links.
	realWork, realTemp string
}

// stepRecord has the data of a step that is not in its result.
type stepRecord struct {
	cut                  bool  // large data is left out
	size                 int64 // of the kept large data
	condition            *bool
	kind                 string
	body                 *pb.Definition // the one that runs
	component            *trace.Component
	def                  *pb.Definition // the definition at component; nil if it is elsewhere in the trace
	inputs               map[string]expr.Value
	envSet               map[string]expr.Value
	env                  []string
	envOf                map[string]expr.Value // the values behind env, which say whether they are sensitive
	exec                 *trace.Exec
	argv                 []expr.Value
	dir                  string
	program, interpreter program
	filesDir             string
	cache                string
	pid                  int
	exit                 proc.Exit
	parts                [2]*part // of stdout and stderr, if there is an exec
}

// New returns a Recorder for the job. The caller makes a Runner from job with the Recorder as its Events. job.Secrets
// must not be nil.
func New(job engine.Config, cfg Config) *Recorder {
	c := &Recorder{
		cfg: cfg, job: job, steps: map[*engine.StepResult]*stepRecord{}, read: map[string]bool{}, limit: maxRecorded,
	}
	if c.sums.open = job.Open; job.Open == nil {
		c.sums.open = os.OpenFile
	}
	return c
}

// Tap returns a writer to w that computes the digests of an output stream of the job, after masking: 0 is stdout, 1 is
// stderr. The caller must call Close.
func (c *Recorder) Tap(stream int, w io.Writer) io.Writer {
	c.taps[stream] = NewTap(w)
	return c.taps[stream]
}

// Close ends the taps. It waits until all digests are computed. It is idempotent.
func (c *Recorder) Close() {
	for _, tap := range c.taps {
		if tap != nil {
			tap.Close()
		}
	}
}

// step returns the record of a step.
func (c *Recorder) step(res *engine.StepResult) *stepRecord {
	s := c.steps[res]
	if s == nil {
		s = &stepRecord{}
		c.steps[res] = s
		c.order = append(c.order, s)
		c.spend(int64(stepCost + len(res.Name)))
	}
	return s
}

// JobStarted implements [engine.Events].
func (c *Recorder) JobStarted(place engine.Place, osEnv map[string]expr.Value) {
	c.place, c.realWork, c.realTemp = place, realPath(place.WorkDir), realPath(place.ScriptDir)
	c.osEnv = osEnv
	c.own.Go(func() { ownDigest() }) // takes as long as a short step
	def := c.job.Definition
	c.spend(definitionSize(def) + textSize(c.cfg.Steps) + int64(len(def.GetSteps()))*stepCost)
	c.spend(valuesSize(c.job.Inputs) + valuesSize(osEnv))
	for name, value := range c.job.Env {
		c.spend(textSize(name) + textSize(value))
	}
	for _, v := range c.job.Vars {
		c.spend(textSize(v.Key) + textSize(v.Value))
	}
}

// realPath returns path without symbolic links. It returns "" if path has no links, or does not exist.
func realPath(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil || real == path {
		return ""
	}
	return real
}

// ConditionEvaluated implements [engine.Events].
func (c *Recorder) ConditionEvaluated(step *engine.StepResult, value bool) {
	c.step(step).condition = &value
}

// VariablesRead implements [engine.Events].
func (c *Recorder) VariablesRead(names []string) {
	for _, name := range names {
		c.read[name] = true
	}
}

// StepFound implements [engine.Events].
func (c *Recorder) StepFound(step *engine.StepResult, found engine.Found) {
	s := c.step(step)
	s.body = found.Definition
	if found.Builtin != "" {
		s.component = &trace.Component{Kind: trace.Builtin, Location: found.Builtin}
		return
	}
	s.component = c.component(found)
	if found.Source != nil {
		s.cache = "fetched"
		if found.Cached {
			s.cache = "hit"
		}
	}
	if c.afford(s, definitionSize(found.Definition)) {
		s.def = found.Definition
	}
}

// StepPrepared implements [engine.Events].
func (c *Recorder) StepPrepared(step *engine.StepResult, with engine.Prepared) {
	s := c.step(step)
	s.body, s.filesDir = with.Definition, with.FilesDir
	switch {
	case with.Script:
		s.kind = trace.KindScript
	case with.Definition.GetType() == pb.DefinitionType_exec:
		s.kind = trace.KindExec
	default:
		s.kind = trace.KindSteps
	}
	if s.component == nil {
		s.component = &trace.Component{Kind: trace.Inline}
	}
	set := map[string]expr.Value{}
	for _, env := range with.Env {
		maps.Copy(set, env)
	}
	if c.afford(s, valuesSize(with.Inputs)+valuesSize(set)) {
		s.inputs, s.envSet = with.Inputs, set
	}
}

// CommandStarting implements [engine.Events].
func (c *Recorder) CommandStarting(
	step *engine.StepResult, cmd *proc.Command, argv []expr.Value, env map[string]expr.Value,
) {
	s := c.step(step)
	s.exec = &trace.Exec{NotStarted: true}
	paths := c.paths(s.filesDir)
	for i, tap := range c.taps {
		s.parts[i] = tap.begin(&paths)
	}
	size := int64(0)
	for _, text := range slices.Concat(cmd.Argv, cmd.Env) {
		size += textSize(text)
	}
	s.dir = cmd.Dir
	if len(cmd.Argv) > 0 {
		s.program, s.interpreter = c.sums.programs(cmd, s.kind == trace.KindScript)
	}
	if !c.afford(s, size) {
		return
	}
	s.argv = argv
	for _, arg := range cmd.Argv[len(argv):] {
		v, _ := expr.New(arg) // null if the argument is too long for a value
		s.argv = append(s.argv, v)
	}
	s.env, s.envOf = cmd.Env, env
}

// CommandStarted implements [engine.Events].
func (c *Recorder) CommandStarted(step *engine.StepResult, pid int) {
	s := c.step(step)
	s.pid, s.exec.NotStarted = pid, false
}

// CommandEnded implements [engine.Events].
func (c *Recorder) CommandEnded(step *engine.StepResult, exit *proc.Exit, timedOut bool) {
	s := c.step(step)
	s.exec.Timeout = timedOut
	if exit == nil {
		return
	}
	s.exit, s.exec.ExitCode = *exit, &exit.Code
	if exit.Signal != 0 {
		s.exec.Signal = cmp.Or(unix.SignalName(exit.Signal), exit.Signal.String())
	}
}

// VersionFound implements [engine.Events].
func (c *Recorder) VersionFound(step *engine.StepResult, version string) {
	c.sums.know(c.step(step).program.digest, version)
}

// StepEnded implements [engine.Events].
func (c *Recorder) StepEnded(step *engine.StepResult) {
	c.afford(c.step(step), valuesSize(step.Outputs)+valuesSize(step.Exports))
}

// ComponentFetched implements [engine.Events].
func (c *Recorder) ComponentFetched(component *component.Component) {
	c.roots = append(c.roots, component)
}

// component returns found in the form of a trace.
func (c *Recorder) component(found engine.Found) *trace.Component {
	if src := found.Source; src != nil {
		digest := trace.Digest{
			trace.SHA256Tree: bareHex(src.Tree), trace.SHA256: bareHex(src.Digest),
			trace.GitCommit: src.Commit, trace.GitTree: src.GitTree,
		}
		maps.DeleteFunc(digest, func(_, value string) bool { return value == "" })
		dir, _ := filepath.Rel(found.Root, found.Dir) // both are absolute
		return &trace.Component{
			Kind: src.Kind, Location: src.Location, Version: src.Version, ResolvedRef: src.ResolvedRef, Digest: digest,
			Dir: dir, File: found.File,
		}
	}
	sum := sha256.Sum256(found.Text)
	k := &trace.Component{
		Kind: trace.Local, Location: found.Dir, File: found.File,
		Digest: trace.Digest{trace.SHA256: hex.EncodeToString(sum[:])},
	}
	if found.Root != "" { // it is a part of a fetched component, and the step around it has the digest
		return k
	}
	if tree := c.sums.tree(found.Dir, cmp.Or(c.realWork, c.place.WorkDir)); tree != "" {
		k.Digest[trace.SHA256Tree] = tree
	}
	return k
}

// paths returns the Paths for the data of a step whose files are in filesDir.
func (c *Recorder) paths(filesDir string) Paths {
	var p Paths
	p.Add(c.place.WorkDir, trace.WorkDir)
	p.Add(c.realWork, trace.WorkDir)
	p.Add(c.place.ScriptDir, trace.TempDir)
	p.Add(c.realTemp, trace.TempDir)
	for _, root := range c.roots {
		p.Add(root.Root, trace.CacheDir+"/"+bareHex(root.Tree))
	}
	p.Add(filesDir, trace.StepDir)
	return p
}

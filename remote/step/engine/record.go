package engine

import (
	"cmp"
	"crypto/sha256"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// Recording asks for a trace of a job, and says what that shall tell of it beyond what the engine knows.
type Recording struct {
	// Source is where the job's text came from. Its digest is left out of the trace if Text, which it is of, has a
	// secret in it.
	Source trace.Source
	Text   []byte
	// Version is that of this program.
	Version string
	// Secrets is how masked values are summed up. If nil, with a new salt.
	Secrets *trace.Secrets
	// Room is told, each time it grows, how large the trace may become, in bytes. If it returns an error the rest of
	// what is large is left out. May be nil.
	Room func(size int64) error
}

const (
	// maxRecorded is how much of what is large a trace has, in bytes of JSON. The rest is left out, step by step.
	maxRecorded = 64 << 20
	// stepCost is about what a step has in a trace beside that, and textCost a text beside its own length: what is
	// left of a masked one, and what stands around it.
	stepCost, textCost = 2 << 10, 128
)

// recorder keeps what a trace will tell. It keeps it as it is: what is a secret is known only when the job has ended.
// A nil recorder keeps nothing, and costs nothing. Only Run's goroutine calls its methods.
type recorder struct {
	Recording
	steps map[*StepResult]*stepRecord
	used  map[string]bool // names of variables that were read
	all   bool            // all were
	roots []*fetch.Component
	sums  sums
	size  int64 // of what is kept
	room  int64 // that was asked for
	limit int64
	short error // why there is no more room
	own   sync.WaitGroup
	place Place
	// realWork and realTemp are the directories of place without symbolic links; empty if there are none.
	realWork, realTemp string
}

// stepRecord is what a step was, as far as its result does not tell.
type stepRecord struct {
	cut                  bool // what is large is left out
	condition            *bool
	kind                 string
	body                 *pb.Definition // what it runs
	component            *trace.Component
	def                  *pb.Definition // where it was found; nil if that stands elsewhere in the trace
	inputs               map[string]expr.Value
	envSet               layer
	env                  []string
	envOf                layer // what env was made of, which knows what is sensitive
	exec                 *trace.Exec
	argv                 []expr.Value
	dir                  string
	program, interpreter program
	filesDir             string
	cache                string
	pid                  int
	exit                 proc.Exit
	parts                [2]int
	output               bool // it has parts
}

func newRecorder(r *Recording) *recorder {
	if r == nil {
		return nil
	}
	return &recorder{Recording: *r, steps: map[*StepResult]*stepRecord{}, used: map[string]bool{}, limit: maxRecorded}
}

// step returns the record of a step.
func (c *recorder) step(res *StepResult) *stepRecord {
	s := c.steps[res]
	if s == nil {
		s = &stepRecord{}
		c.steps[res] = s
		c.spend(int64(stepCost + len(res.Name)))
	}
	return s
}

// spend counts n bytes, and sees to it that there is room for them.
func (c *recorder) spend(n int64) {
	c.size += n
	if c.Room == nil || c.short != nil || 2*c.size <= c.room {
		return
	}
	c.room = max(4*c.size, 256<<10)
	if c.short = c.Room(c.room); c.short != nil {
		c.limit = min(c.limit, c.size)
	}
}

// afford reports whether n bytes more of step s are kept, and counts them.
func (c *recorder) afford(s *stepRecord, n int64) bool {
	if s.cut || c.size+n > c.limit {
		s.cut = true
		return false
	}
	c.spend(n)
	if c.short != nil {
		s.cut = true
	}
	return !s.cut
}

// textSize is what a text takes in JSON.
func textSize(text string) int64 {
	n := textCost + len(text)
	for i := range len(text) {
		if text[i] < 0x20 {
			n += 5
		}
	}
	return int64(n)
}

func valuesSize(values map[string]expr.Value) (n int64) {
	for name, v := range values {
		n += textSize(name) + textSize(v.Text())
	}
	return n
}

// begin keeps what is known before the first step.
func (c *recorder) begin(cfg *Config, place Place) {
	if c == nil {
		return
	}
	c.place, c.realWork, c.realTemp = place, realPath(place.WorkDir), realPath(place.ScriptDir)
	c.own.Go(func() { ownDigest() }) // which takes as long as a short step
	c.spend(int64(2*proto.Size(cfg.Definition)) + int64(len(cfg.Definition.GetSteps()))*stepCost)
	for name, value := range cfg.Env {
		c.spend(textSize(name) + textSize(value))
	}
	for _, v := range cfg.Vars {
		c.spend(textSize(v.Key) + textSize(v.Value))
	}
}

// realPath is path without symbolic links; empty if it has none, or is not there.
func realPath(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil || real == path {
		return ""
	}
	return real
}

// end waits for what begin has begun.
func (c *recorder) end() {
	if c != nil {
		c.own.Wait()
	}
}

// condition keeps what an if gave.
func (c *recorder) condition(res *StepResult, value bool, err error) {
	if c == nil || err != nil {
		return
	}
	gave := value // which the others need no memory for
	c.step(res).condition = &gave
}

// reads keeps which variables expressions with the references refs may read.
func (c *recorder) reads(refs []expr.Reference) {
	if c == nil {
		return
	}
	for _, ref := range refs {
		path := ref.Path
		if len(path) == 0 || path[0] != "vars" && path[0] != "job" {
			continue
		}
		if len(path) > 2 && path[0] == "job" && path[1] == "variables" {
			path = path[1:]
		}
		if len(path) == 1 || path[0] == "job" && path[1] == "variables" {
			c.all = true
			continue
		}
		c.used[path[1]] = true
		if path[0] == "job" {
			c.describes(path[1])
		}
	}
}

// describes keeps that what the predefined variables tell of the job was read: all of it, or what is below key.
func (c *recorder) describes(key string) {
	if c == nil {
		return
	}
	for _, p := range predefined {
		if key == "" || p.path[0] == key {
			c.used[p.variable] = true
		}
	}
}

// found keeps what a step turned out to be.
func (c *recorder) found(res *StepResult, found loaded) {
	if c == nil {
		return
	}
	s := c.step(res)
	s.body = found.def
	s.component = &trace.Component{Kind: trace.Builtin, Location: found.builtin}
	if found.builtin != "" {
		return
	}
	s.component = c.component(found)
	if found.source != nil {
		s.cache = "fetched"
		if found.cached {
			s.cache = "hit"
		}
	}
	if c.afford(s, int64(2*proto.Size(found.def))) {
		s.def = found.def
	}
}

// prepared keeps what a step was given.
func (c *recorder) prepared(res *StepResult, g *frame, set []layer) {
	if c == nil {
		return
	}
	s := c.step(res)
	s.kind, s.body = trace.KindSteps, g.def
	if g.def.GetType() == pb.DefinitionType_exec {
		s.kind = trace.KindExec
	}
	if g.builtin != "" {
		s.kind = trace.KindScript
	}
	if s.component == nil {
		s.component = &trace.Component{Kind: trace.Inline}
	}
	if g.files != nil {
		s.filesDir = g.files.dir
	}
	all := layer{}
	for _, l := range set {
		maps.Copy(all, l)
	}
	inputs := g.inputs
	switch {
	case s.component.Kind == trace.Inline: // it has none of its own
		inputs = nil
	case g.builtin != "":
		inputs = g.scriptInputs()
	}
	if c.afford(s, valuesSize(inputs)+valuesSize(all)) {
		s.inputs, s.envSet = inputs, all
	}
}

// command keeps what is run, with the environment that its env was made of.
func (c *recorder) command(res *StepResult, cmd *proc.Command, argv []expr.Value, envOf layer) {
	if c == nil {
		return
	}
	s := c.step(res)
	s.exec = &trace.Exec{NotStarted: true}
	c.output(s)
	size := int64(0)
	for _, arg := range cmd.Argv {
		size += textSize(arg)
	}
	for _, kv := range cmd.Env {
		size += textSize(kv)
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
		s.argv = append(s.argv, text(arg))
	}
	s.env, s.envOf = cmd.Env, envOf
}

// output begins the part of the streams that is the step's.
func (c *recorder) output(s *stepRecord) {
	s.output = true
	paths := c.paths(s.filesDir)
	for i, tap := range c.place.Taps {
		s.parts[i] = tap.Begin(&paths)
	}
}

// started keeps the process of a command.
func (c *recorder) started(res *StepResult, p *proc.Process) {
	if c == nil {
		return
	}
	s := c.step(res)
	s.pid, s.exec.NotStarted = p.PID(), false
}

// exited keeps how it ended.
func (c *recorder) exited(res *StepResult, exit proc.Exit, expired bool, err error) {
	if c == nil {
		return
	}
	s := c.step(res)
	s.exit = exit
	if s.exec == nil {
		return
	}
	s.exec.ExitCode, s.exec.Timeout = exit.Code, expired
	if s.exec.NotStarted {
		s.exec.ExitCode = startExitCode(err)
	}
	if exit.Signal != 0 {
		s.exec.Signal = signalName(exit.Signal)
	}
}

// finished counts what a step gave.
func (c *recorder) finished(res *StepResult) {
	if c == nil {
		return
	}
	c.afford(c.step(res), valuesSize(res.Outputs)+valuesSize(res.Exports))
}

// fetched keeps where a component is.
func (c *recorder) fetched(component *fetch.Component) {
	if c != nil {
		c.roots = append(c.roots, component)
	}
}

// component is what was found, for a trace.
func (c *recorder) component(found loaded) *trace.Component {
	sum := sha256.Sum256(found.text)
	if src := found.source; src != nil {
		digest := trace.Digest{}
		for kind, value := range map[string]string{
			trace.SHA256Tree: treeHex(src.Tree),
			trace.SHA256:     strings.TrimPrefix(src.Digest, "sha256:"),
			trace.GitCommit:  src.Commit,
			trace.GitTree:    src.GitTree,
		} {
			if value != "" {
				digest[kind] = value
			}
		}
		return &trace.Component{
			Kind: src.Kind, Location: src.Location, Version: src.Version, ResolvedRef: src.ResolvedRef, Digest: digest,
			Dir: below(found.root, found.dir), File: found.file,
		}
	}
	k := &trace.Component{Kind: trace.Local, Location: found.dir, File: found.file, Digest: trace.Digest{trace.SHA256: hexOf(sum[:])}}
	if found.root != "" { // it is one of what was fetched, whose digest the step around it has
		return k
	}
	if tree := c.sums.tree(found.dir, cmp.Or(c.realWork, c.place.WorkDir)); tree != "" {
		k.Digest[trace.SHA256Tree] = tree
	}
	return k
}

// paths are the paths that stand as markers in what has to do with a step whose files are in filesDir.
func (c *recorder) paths(filesDir string) trace.Paths {
	var p trace.Paths
	p.Add(c.place.WorkDir, trace.WorkDir)
	p.Add(c.realWork, trace.WorkDir)
	p.Add(c.place.ScriptDir, trace.TempDir)
	p.Add(c.realTemp, trace.TempDir)
	for _, root := range c.roots {
		p.Add(root.Root, trace.CacheDir+"/"+treeHex(root.Tree))
	}
	if filesDir != "" {
		p.Add(filesDir, trace.StepDir)
	}
	return p
}

// signalName is the name of a signal.
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return s.String()
}

// scriptInputs are the inputs of what is built in. The script is declared to be sensitive so that it can hold secrets;
// it is no secret by that.
func (f *frame) scriptInputs() map[string]expr.Value {
	inputs := maps.Clone(f.inputs)
	script, err := expr.New(f.script)
	if err != nil { // it is too long for a value
		delete(inputs, inputScript)
		return inputs
	}
	if f.scriptSensitive {
		script = script.MarkSensitive()
	}
	inputs[inputScript] = script
	return inputs
}

// names returns the variables that were read, in order.
func (c *recorder) names(vars []Variable) []Variable {
	var read []Variable
	for _, v := range vars {
		if c.all || c.used[v.Key] {
			read = append(read, v)
		}
	}
	return slices.Clip(read)
}

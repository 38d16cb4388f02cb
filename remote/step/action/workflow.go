package action

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/yamltree"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// Job is a job of a workflow.
type Job struct {
	// Name is the job's key in the workflow.
	Name string

	file        string
	workflow    string // the workflow's name
	inputs      []jobInput
	callable    callable // of the workflow
	events      []string
	env         []setting
	steps       []*step
	shell       string // the default
	dir         string
	outputs     []setting
	ignored     []*yaml.Node // keys that may have no effect; see the map of this name
	strategy    int          // the line of the key strategy, or 0
	rawStrategy *yaml.Node   // the value of strategy
	boxes       []box        // its container and its services

	// The following is for a run of the whole workflow.

	at           *yaml.Node // the key of the job
	needs        []need
	when         setting // its if; without a text it has none
	strategyTree *tree
	atStart      map[string]*tree // keys that are read when a build starts
	mentions     []mention
	group        *tree   // the concurrency of the workflow
	call         calling // of another workflow
}

// ignored are the keys of a workflow and of a job that have no effect, with the reasons. A key without a reason gets no
// note.
var ignored = map[string]string{
	"permissions":       "a token has the permissions that it was made with",
	"concurrency":       "jobs that run at the same time do not know each other",
	"environment":       "there are no environments with rules",
	"needs":             "of the workflow one job runs, and needs is empty",
	"if":                "the job was asked for",
	"snapshot":          "there are no images of machines",
	"continue-on-error": "no other job depends on this one",
	"id-token":          "there is no OIDC service, so getting a token fails; pass a secret (--var NAME --mask NAME)",
	"run-name":          "", "name": "", "description": "", "runs-on": "", "cancel-timeout-minutes": "",
	"timeout-minutes": "", // whoever makes the step of the job gives it that limit
}

// ReadJob reads the job of a workflow. name is its key; it may be empty if there is only one job. Errors call the text
// file.
func ReadJob(file string, text []byte, name string) (*Job, error) {
	j, err := readJob(file, text, name)
	if err != nil {
		return nil, err
	}
	return j, j.checkStart()
}

// readJob is ReadJob without a check of the keys that matter before the job starts. The VM's end, which runs the job,
// is 45 KB smaller without their code.
func readJob(file string, text []byte, name string) (*Job, error) {
	r, root := load(file, text)
	j, jobs := r.workflow(root)
	if r.Err != nil {
		return nil, r.Err
	}
	found, err := choose(file, jobs, name)
	if err != nil {
		return nil, err
	}
	if call := r.job(j, found); call != nil {
		r.Failf(call, "the job calls another workflow, so it runs as a part of its own: --job-name %.64s --needs", j.Name)
	}
	if r.Err != nil {
		return nil, r.Err
	}
	return j, nil
}

// workflow reads the parts of a workflow that all its jobs share, and returns its jobs.
func (r *reader) workflow(root *yaml.Node) (j *Job, jobs []yamltree.Entry) {
	j = &Job{file: r.Text.Name, workflow: r.Text.Name}
	for _, p := range r.Mapping(root, "the workflow") {
		switch p.Key {
		case "name":
			j.workflow = r.text(p.Value, p.Key)
		case "on":
			j.inputs, j.callable = r.triggers(p.Value)
			j.events = r.events(p.Value)
		case "env":
			j.env = r.settings(p.Value, p.Key)
		case "defaults":
			j.defaults(r, p.Value, false)
		case "jobs":
			jobs = r.Mapping(p.Value, "jobs")
		case "permissions":
			j.permissions(r, p)
		case "concurrency":
			j.ignore(p)
			j.group = r.tree(p.Value, p.Key, contexts(groupContexts))
		default:
			j.ignore(p)
		}
	}
	return j, jobs
}

// job reads a job into j. For a job that calls another workflow, and so has no steps, it returns the key of the call.
func (r *reader) job(j *Job, found yamltree.Entry) (call *yaml.Node) {
	j.Name, j.at, j.atStart, r.mentions = found.Key, found.At, map[string]*tree{}, nil
	j.call = calling{}
	var steps *yaml.Node
	var ofCall []yamltree.Entry
	keys := r.Mapping(found.Value, "the job "+found.Key)
	for _, p := range keys {
		switch p.Key {
		case "if":
			j.ignore(p)
			j.when = r.condition(p.Value)
		case "needs":
			j.ignore(p)
			j.needs = r.readNeeds(p)
		case "concurrency", "continue-on-error", "timeout-minutes", "runs-on":
			j.ignore(p)
			j.atStart[p.Key] = r.tree(p.Value, p.Key, contexts(startContexts))
		case "permissions":
			j.permissions(r, p)
		case "env":
			j.env = append(slices.Clip(j.env), r.settings(p.Value, p.Key)...)
		case "defaults":
			j.defaults(r, p.Value, true)
		case "steps":
			steps = p.Value
		case "outputs":
			j.outputs = r.texts(p.Value, p.Key)
		case "strategy":
			j.strategy, j.rawStrategy = p.At.Line, p.Value
			j.strategyTree = r.tree(p.Value, p.Key, contexts(ifContexts))
		case "container":
			j.boxes = append(j.boxes, r.box(p, false))
		case "services":
			if text, ok := r.single(p.Value, p.Key); ok {
				j.boxes = append(j.boxes, box{isService: true, line: p.At.Line, image: setting{p.Key, text, p.Value.Line}})
				break
			}
			for _, service := range r.Mapping(p.Value, p.Key) {
				j.boxes = append(j.boxes, r.box(service, true))
			}
		default:
			if !r.readCall(&j.call, p) {
				j.ignore(p)
			} else if p.Key != "uses" {
				ofCall = append(ofCall, p)
			}
		}
	}
	if call = j.call.at; call == nil { // they have no meaning beside steps
		for _, p := range ofCall {
			j.ignore(p)
		}
	}
	for _, p := range keys {
		if call != nil && !slices.Contains(besideUses, p.Key) {
			r.Failf(p.At, "a job that calls another workflow (uses) cannot have %.64s; it may have %s", p.Key,
				strings.Join(besideUses, ", "))
		}
	}
	if r.Err == nil && steps == nil && call == nil {
		r.Failf(found.At, "the job %.64q has no steps", found.Key)
	}
	j.steps = r.steps(steps, true)
	known := knownNames(true)
	r.expressions(known, "env ", j.env)
	r.expressions(known, "output ", j.outputs)
	for _, b := range j.boxes {
		r.expressions(known, b.label(), append([]setting{b.image, b.options}, b.env...))
	}
	j.mentions = r.mentions
	return call
}

// ignore keeps a key for writeNotes.
func (j *Job) ignore(p yamltree.Entry) { j.ignored = append(j.ignored, p.At) }

// permissions keeps the key, and the one in it that asks for a token of OIDC.
func (j *Job) permissions(r *reader, p yamltree.Entry) {
	j.ignore(p)
	if n := r.Value(p.Value); n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if key := n.Content[i]; key.Value == "id-token" && n.Content[i+1].Value == "write" {
				j.ignored = append(j.ignored, key)
			}
		}
	}
}

// writeNotes writes the notes to the job's output. hasMatrix says that the job got values of a matrix, and inContainer
// that it runs in its container, beside its services.
func (j *Job) writeNotes(to io.Writer, hasMatrix, inContainer bool) error {
	notes := append(notesOf(j.file, j.ignored, ignored), j.boxNotes(inContainer)...)
	if j.strategy > 0 && !hasMatrix {
		notes = append(notes, fmt.Sprintf("%s:%d: strategy has no effect: the job runs once, and the matrix is empty; "+
			"give its values for this run (--matrix)", j.file, j.strategy))
	}
	for _, note := range notes {
		if _, err := fmt.Fprintf(to, "note: %s\n", note); err != nil {
			return fmt.Errorf("write a note: %w", err)
		}
	}
	return nil
}

// notesOf returns notes about keys of a file. reasons has the keys that are known, each with the reason or empty.
func notesOf(file string, keys []*yaml.Node, reasons map[string]string) (notes []string) {
	for _, key := range keys {
		why, known := reasons[key.Value]
		if !known {
			why = "unknown key"
		}
		if why != "" {
			notes = append(notes, fmt.Sprintf("%s:%d: %.64s has no effect: %s", file, key.Line, key.Value, why))
		}
	}
	return notes
}

// defaults reads the defaults of a job or, unless ofJob, of the workflow. In a job, run may be an expression.
func (j *Job) defaults(r *reader, n *yaml.Node, ofJob bool) {
	for _, p := range r.Mapping(n, "defaults") {
		if p.Key != "run" {
			j.ignore(p)
			continue
		}
		if text, ok := r.single(p.Value, "defaults.run"); ok && ofJob {
			r.expressions(knownNames(true), "", []setting{{"defaults.run", text, p.Value.Line}})
			inner := strings.TrimSuffix(strings.TrimPrefix(text, "${{"), "}}")
			j.shell = fmt.Sprintf("${{ (%s).shell || '%s' }}", inner, strings.ReplaceAll(j.shell, "'", "''"))
			j.dir = fmt.Sprintf("${{ (%s).working-directory || '%s' }}", inner, strings.ReplaceAll(j.dir, "'", "''"))
			continue
		}
		for _, part := range r.Mapping(p.Value, "defaults.run") {
			switch part.Key {
			case "shell":
				j.shell = r.text(part.Value, part.Key)
			case "working-directory":
				j.dir = r.text(part.Value, part.Key)
			default:
				j.ignore(part)
			}
		}
	}
}

// Workflow is a workflow, with all its jobs.
type Workflow struct {
	// Jobs are the jobs, in the order of the file. A workflow that was read without an error has some.
	Jobs []*Job
	// Events are the names of the events that start the workflow.
	Events []string

	file    string
	call    callable
	ignored []*yaml.Node  // keys of the workflow itself
	empty   []*lang.Error // parts of needs that are always empty
}

// ReadWorkflow reads all jobs of a workflow. Errors call the text file. The Workflow is never nil: with an error it has
// what was read.
func ReadWorkflow(file string, text []byte) (*Workflow, error) {
	r, root := load(file, text)
	shared, jobs := r.workflow(root)
	w := &Workflow{file: file, ignored: shared.ignored, Events: shared.events, call: shared.callable}
	for _, found := range jobs {
		j := *shared
		j.ignored = nil
		if r.job(&j, found); r.Err == nil {
			r.Fail(j.checkStart())
		}
		w.Jobs = append(w.Jobs, &j)
	}
	if r.Err == nil && len(jobs) == 0 {
		_, r.Err = choose(file, nil, "")
	}
	if r.Err == nil && shared.group != nil && shared.group.isLiteral() {
		_, _, err := w.Group(Values{})
		r.Fail(err)
	}
	w.checkNeeds(r)
	return w, r.Err
}

// Job returns the job called name, or nil.
func (w *Workflow) Job(name string) *Job {
	if i := slices.IndexFunc(w.Jobs, func(j *Job) bool { return j.Name == name }); i >= 0 {
		return w.Jobs[i]
	}
	return nil
}

// checkNeeds checks that the needs of the jobs exist, and that their expressions name only outputs that these have.
func (w *Workflow) checkNeeds(r *reader) {
	if r.Err != nil {
		return
	}
	jobs := make(map[string]*Job, len(w.Jobs))
	names := make([]string, len(w.Jobs))
	for i, j := range w.Jobs {
		jobs[j.Name], names[i] = j, j.Name
	}
	for _, j := range w.Jobs {
		needs := j.Needs()
		for i, name := range needs {
			if jobs[name] == nil {
				r.Failf(j.needs[i].at, "the job %.64q needs %.64q, and there is no such job%s", j.Name, name,
					lang.Suggest(name, names, ""))
			}
		}
		for _, m := range j.mentions {
			if len(m.path) == 0 || r.Err != nil {
				continue
			}
			from := slices.IndexFunc(needs, func(name string) bool { return strings.EqualFold(name, m.path[0]) })
			if from < 0 { // GitHub runs such files
				w.empty = append(w.empty, m.errorf(w.file, "needs has no job %.64q, so that this is empty; add it to the needs "+
					"of the job %.64q", m.path[0], j.Name))
				continue
			}
			r.Fail(m.check(w.file, jobs[needs[from]]))
		}
	}
}

func (m *mention) errorf(file, format string, args ...any) *lang.Error {
	return &lang.Error{
		Where: fmt.Sprintf("%s:%d", file, m.line), Line: m.line, Message: m.label + ": " + fmt.Sprintf(format, args...),
	}
}

// check returns an error if the path leads to an output that the job does not have.
func (m *mention) check(file string, from *Job) error {
	if len(m.path) < 3 || !strings.EqualFold(m.path[1], "outputs") || from.call.at != nil {
		return nil
	}
	var names []string
	for _, o := range from.outputs {
		if names = append(names, o.name); strings.EqualFold(o.name, m.path[2]) {
			return nil
		}
	}
	has := "; it has none"
	if len(names) > 0 {
		has = "; it has " + shown(names)
	}
	return m.errorf(file, "the job %.64q has no output %.64q%s", from.Name, m.path[2], lang.Suggest(m.path[2], names, has))
}

// choose returns the job called name.
func choose(file string, jobs []yamltree.Entry, name string) (yamltree.Entry, error) {
	names := make([]string, len(jobs))
	for i, p := range jobs {
		names[i] = p.Key
		if p.Key == name {
			return p, nil
		}
	}
	slices.Sort(names)
	list := fmt.Sprintf("%.400s", strings.Join(names, ", "))
	switch {
	case len(jobs) == 0:
		return yamltree.Entry{}, fmt.Errorf("%s: it has no jobs", file)
	case name != "":
		return yamltree.Entry{}, fmt.Errorf("%s: there is no job %.64q; there are %s", file, name, list)
	case len(jobs) > 1:
		return yamltree.Entry{}, fmt.Errorf("%s has %d jobs; choose one with --job-name: %s", file, len(jobs), list)
	}
	return jobs[0], nil
}

// WorkflowJobs returns the names of the jobs of a workflow, in the order of the file. The rest of it may have mistakes.
func WorkflowJobs(text []byte) (names []string) {
	r, root := load("", text)
	r.Err = nil // it may be about a second document
	for _, p := range r.Mapping(root, "the workflow") {
		if p.Key != "jobs" {
			continue
		}
		for _, job := range r.Mapping(p.Value, p.Key) {
			names = append(names, job.Key)
		}
	}
	return names
}

// maxUnknown bounds the warnings of each kind about a workflow.
const maxUnknown = 20

// Uses returns the references of the actions in the steps of all jobs, each once, sorted.
func (w *Workflow) Uses() []string {
	var all []*step
	for _, j := range w.Jobs {
		all = append(all, j.steps...)
	}
	return usesOf(all)
}

// Warnings returns warnings about unknown keys, and about parts of needs that are always empty.
func (w *Workflow) Warnings() (warnings []*lang.Error) {
	warnings = slices.Clone(w.empty[:min(len(w.empty), maxUnknown)])
	unknown := notIn(ignored, w.ignored)
	for _, j := range w.Jobs {
		unknown = append(unknown, notIn(ignored, j.ignored)...)
		for _, b := range j.boxes {
			unknown = append(unknown, notIn(boxKeys, b.ignored)...)
		}
	}
	for _, key := range unknown[:min(len(unknown), maxUnknown)] {
		warnings = append(warnings, &lang.Error{
			Where: fmt.Sprintf("%s:%d:%d", w.file, key.Line, key.Column), Line: key.Line, Column: key.Column,
			Message: fmt.Sprintf("unknown key%s: it has no effect, and GitHub refuses it", lang.Quote(key.Value)),
		})
	}
	return warnings
}

// notIn returns the keys that are not known.
func notIn(known map[string]string, keys []*yaml.Node) []*yaml.Node {
	return slices.DeleteFunc(slices.Clone(keys), func(key *yaml.Node) bool { _, is := known[key.Value]; return is })
}

// ManifestUses returns the references of the actions in the steps of an action.yml, each once, sorted.
func ManifestUses(file string, text []byte) ([]string, error) {
	m, err := parseManifest(file, text)
	if err != nil {
		return nil, err
	}
	return usesOf(m.steps), nil
}

// LocalUses returns the references of the actions in the steps of the action in dir, each once, sorted. For a missing
// action the list is empty: an earlier step may make it. Errors call the action name.
func LocalUses(dir, name string) ([]string, error) {
	m, err := readManifest(os.OpenFile, dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return usesOf(m.steps), nil
}

func usesOf(steps []*step) []string {
	var all []string
	for _, s := range steps {
		if s.uses != "" {
			all = append(all, s.uses)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

package gitlabci

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// Config says which files Read may read, and describes the pipeline of the jobs. The zero value is for a file without
// includes.
type Config struct {
	// Open reads a file of the project. The slash-separated path is relative to the project's directory and never
	// leaves it. If nil, the file can include no others.
	Open func(path string) ([]byte, error)
	// List returns the paths of all files of the project, for include with wildcards and for exists of rules. It is
	// called at most once. If nil, there are no files.
	List func() ([]string, error)
	// Other reads a file that is included from another place: PROJECT/PATH, HOST/PATH of a URL or of a component, or
	// templates/NAME. If nil, such files are left out.
	Other func(path string) ([]byte, error)
	// Changed returns the paths of the files that differ from compareTo, a branch or a commit. If compareTo is empty,
	// it is the commit before. A nil result means that the changes are not known, and so does a nil Changed.
	Changed func(compareTo string) ([]string, error)
	// Predefined are variables that the file's override. Given override the file's. Both are literal.
	Predefined, Given []Variable
	// ProjectDir is the value of CI_PROJECT_DIR. If empty, it is the work directory of the steps, which is not known
	// before the job runs.
	ProjectDir string
	// Inputs are values for the inputs in the spec of the file. The value of a string input is used unchanged; all
	// others are YAML.
	Inputs map[string]string
	// Matrix has values of parallel: matrix. They choose one of the builds of a job.
	Matrix map[string]string
	// InContainer says that the caller runs jobs in the containers that they describe. Then there is no notice about
	// that.
	InContainer bool
	// Skip are names of jobs that the caller leaves out of the pipeline. They may have mistakes.
	Skip []string
	// Colours says that the commands of a script are shown in colours before they run.
	Colours bool

	depth    int           // of a child pipeline
	planned  *atomic.Int64 // how many jobs a pipeline and its children have
	artifact ReadArtifact  // for include: artifact; nil before the jobs have run
}

// File is a .gitlab-ci.yml with all its includes. It is not safe for concurrent use.
type File struct {
	cfg     Config
	tree    *tree
	top     *yaml.Node            // a mapping
	globals map[string]*yaml.Node // by name
	jobs    map[string]jobEntry   // all of them
	names   []string              // of all jobs, in order
	whole   map[string]*yaml.Node // by name, merged with the jobs they extend
	notices []string
	left    []string     // includes from other places, which were left out
	missing []*yaml.Node // names of inputs without a value
	warned  int          // the warnings of the tree that are about the whole file

	paths   []string            // of the files of the project; nil before the first use
	changes map[string][]string // paths of changed files, by the compareTo of Config.Changed
}

// globals are the top-level keys that are not jobs.
var globals = []string{
	"default", "include", "stages", "variables", "workflow", "spec",
	"image", "services", "cache", "before_script", "after_script",
}

// jobEntry is a job as it stands in the file.
type jobEntry struct{ key, node *yaml.Node }

// defaults are the keys of default.
var defaults = append(slices.Clone(stepLists),
	"after_script", "artifacts", "before_script", "cache", "hooks", "id_tokens", "identity", "image", "interruptible",
	"retry", "services", "tags", "timeout",
)

// Read reads the file data and its includes. Errors call the file name. The error is a [*lang.Error] with the first
// mistake.
func Read(name string, data []byte, cfg Config) (*File, error) {
	src, err := lang.Load(name, data)
	if err != nil {
		return nil, err
	}
	f := &File{
		cfg: cfg, tree: newTree(src), globals: map[string]*yaml.Node{},
		jobs: map[string]jobEntry{}, whole: map[string]*yaml.Node{}, changes: map[string][]string{},
	}
	f.top = (&includer{file: f, open: cfg.Open, stack: []string{name}}).load(src, nil)
	for key, value := range entries(f.top) {
		if slices.Contains(globals, key.Value) {
			f.globals[key.Value] = value
		} else {
			f.tree.checkName(key, "the name of a job")
			f.jobs[key.Value] = jobEntry{key, value}
			f.names = append(f.names, key.Value)
		}
	}
	if len(f.names) == 0 {
		f.tree.fail(src.Errorf(nil,
			"the file has no job; a job is a name at the start of a line, and below it script: or run:%s", f.mayBeElsewhere()))
	}
	f.checkKeys("default", defaults, "; write it into the jobs")
	f.checkKeys("workflow", []string{"auto_cancel", "name", "rules"}, "")
	if n := f.globals["stages"]; !isNull(n) {
		f.tree.warnOfValues(n)
	}
	f.warned = len(f.tree.warnings)
	return f, f.tree.Err
}

// checkKeys checks the keys of the global key name; see the tree's.
func (f *File) checkKeys(name string, known []string, hint string) {
	n := f.globals[name]
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		f.tree.failf(n, "%s must be a mapping, not %s", name, describe(n))
	}
	f.tree.checkKeys(n, name, known, hint)
}

// Jobs returns the names of the jobs that can run, in the order of the file. The parallel builds of a job count as one.
func (f *File) Jobs() []string {
	return slices.DeleteFunc(slices.Clone(f.names), func(name string) bool { return strings.HasPrefix(name, ".") })
}

// Builds returns the names of the builds of a job: its own name, or the names of its parallel builds. name may be that
// of one of the builds.
func (f *File) Builds(name string) ([]string, error) {
	f.tree.Err = nil // the error of an earlier job
	d := f.find(name)
	d.check()
	var names []string
	if d.name != name || len(f.cfg.Matrix) > 0 {
		names = []string{d.choose(name).name}
	} else {
		for _, s := range d.shares() {
			names = append(names, s.name)
		}
	}
	return names, f.tree.Err
}

// Check compiles all jobs, as parts of one pipeline, and returns the first mistake of each, in order. The errors have
// the type [*lang.Error]. Of parallel builds it compiles the first one. If inspect is not nil, it is called with each
// compiled job, and Check adds its errors.
func (f *File) Check(inspect func(name string, job *Job) error) []error {
	var errs []error
	reported := map[string]bool{} // jobs may share the part with the mistake
	// The error of an earlier job counts no more.
	f.tree.Err = nil
	stages, jobs := f.stages(), f.Jobs()
	if f.tree.Err != nil {
		return []error{f.tree.Err}
	}
	needs := map[string][]string{}
	for _, name := range jobs {
		f.tree.Err = nil
		d := f.find(name)
		d.check()
		needs[name] = d.checkPlace(stages, jobs)
		err := f.tree.Err
		if err == nil {
			var job *Job
			if job, err = f.compile(d, d.shares()[0]); err == nil && inspect != nil {
				err = inspect(name, job)
			}
		}
		if err != nil && !reported[err.Error()] {
			reported[err.Error()] = true
			errs = append(errs, err)
		}
	}
	if loop := loopOf(jobs, needs); loop != nil {
		errs = append(errs, f.tree.Errorf(f.jobs[loop[0]].key, "the job needs itself, directly or by others: %s; remove one "+
			"of these from needs", strings.ReplaceAll(lang.QuoteNames(append(loop, loop[0])), ",", " needs")))
	}
	return errs
}

// loopOf returns a loop of jobs: each needs the next, and the last needs the first. It returns nil without a loop.
func loopOf(jobs []string, needs map[string][]string) []string {
	wanted, by := map[string]int{}, map[string][]string{} // how many needs are not done; which jobs need it
	for _, name := range jobs {
		for _, other := range needs[name] {
			by[other] = append(by[other], name)
		}
		wanted[name] = len(needs[name])
	}
	var done []string
	for name := range maps.Keys(by) { // a hidden job needs none here
		if wanted[name] == 0 {
			done = append(done, name)
		}
	}
	for ; len(done) > 0; done = done[1:] {
		for _, name := range by[done[0]] {
			if wanted[name]--; wanted[name] == 0 {
				done = append(done, name)
			}
		}
	}
	at := slices.IndexFunc(jobs, func(name string) bool { return wanted[name] > 0 })
	if at < 0 {
		return nil
	}
	var path []string
	seen := map[string]int{}
	for name := jobs[at]; ; {
		if from, again := seen[name]; again {
			return path[from:]
		}
		seen[name] = len(path)
		path = append(path, name)
		next := slices.IndexFunc(needs[name], func(other string) bool { return wanted[other] > 0 })
		name = needs[name][next] // a job that is not done has such a need
	}
}

// topOf returns the mapping of jobs in the documents of src, and the header before it, or nil if there is no header.
func (f *File) topOf(src *lang.Source) (header, top *yaml.Node) {
	docs := src.Docs
	if len(docs) == 2 && find(docs[0], "spec") != nil {
		header, docs = f.tree.expand(src, docs[0]), docs[1:]
	}
	switch {
	case len(docs) == 0:
		return nil, f.tree.fail(src.Errorf(nil, "the file is empty; write a job: a name, and below it script: or run:"))
	case len(docs) > 1:
		return nil, f.tree.fail(src.Errorf(docs[1],
			"the file has one document, after one with a spec; this is one too many"))
	}
	if top = f.tree.expand(src, docs[0]); top.Kind != yaml.MappingNode {
		return nil, f.tree.fail(src.Errorf(docs[0],
			"the file must be a mapping of jobs, not %s; for a list of steps use the format steps", describe(top)))
	}
	return header, top
}

// notice adds a notice about the file, unless it is there already.
func (f *File) notice(text string) {
	if !slices.Contains(f.notices, text) {
		f.notices = append(f.notices, text)
	}
}

package gitlabci

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// Config says what Read may read, and in which pipeline the jobs are. The zero value is for one file alone.
type Config struct {
	// Open reads a file of the project by its slash-separated path from the top; the path never leaves the project. If
	// nil, the file can include no others.
	Open func(path string) ([]byte, error)
	// List returns the paths of all files of the project, for include with wildcards and for exists of rules. It is called
	// once at most. If nil, there are no files.
	List func() ([]string, error)
	// Other reads a file that is included from elsewhere: PROJECT/PATH, HOST/PATH of a URL or of a component, or
	// templates/NAME. If nil, such files are left out.
	Other func(path string) ([]byte, error)
	// Changed returns the paths of the files that differ from compareTo, a branch or a commit, or from the commit before
	// if compareTo is empty; nil if that is not known. If it is nil, nothing is known.
	Changed func(compareTo string) ([]string, error)
	// Predefined are variables below those of the file, Given those above them. They are literal.
	Predefined, Given []Variable
	// ProjectDir is the value of CI_PROJECT_DIR. If empty, it is known when the job runs: it is the work directory of the
	// steps.
	ProjectDir string
	// Inputs are values for the inputs in the spec of the file: texts as they are, all other types as YAML.
	Inputs map[string]string
	// Matrix has values of parallel: matrix, which choose one of the builds of a job.
	Matrix map[string]string
	// InContainer tells that the caller runs jobs in the containers that they describe: then no notice is about that.
	InContainer bool
	// Colours says that the commands of a script are shown in colours before they run.
	Colours bool
}

// File is a .gitlab-ci.yml with all its includes. It is for one goroutine at a time.
type File struct {
	cfg     Config
	tree    *tree
	top     *yaml.Node            // a mapping
	globals map[string]*yaml.Node // by their names
	jobs    map[string]jobEntry   // all of them
	names   []string              // of all jobs, in order
	whole   map[string]*yaml.Node // jobs, merged with those they extend
	notices []string
	left    []string     // includes from elsewhere, which were left out
	missing []*yaml.Node // the names of inputs without a value

	paths   []string            // of the project, once they are listed
	changes map[string][]string // of the project, by what they are compared with
}

// globals are the top-level keys that are not jobs.
var globals = []string{
	"default", "include", "stages", "variables", "workflow", "spec",
	"image", "services", "cache", "before_script", "after_script",
}

// jobEntry is a job, as it stands in the file.
type jobEntry struct{ key, node *yaml.Node }

// defaults are the keys of default.
var defaults = append(slices.Clone(stepLists),
	"after_script", "artifacts", "before_script", "cache", "hooks", "id_tokens", "identity", "image", "interruptible",
	"retry", "services", "tags", "timeout",
)

// Read reads the file data, which errors call name, and its includes. The error is a [*lang.Error] with the first
// mistake.
func Read(name string, data []byte, cfg Config) (*File, error) {
	src, err := lang.Load(name, data)
	if err != nil {
		return nil, err
	}
	f := &File{
		cfg: cfg, tree: &tree{main: src, others: map[*yaml.Node]*lang.Source{}}, globals: map[string]*yaml.Node{},
		jobs: map[string]jobEntry{}, whole: map[string]*yaml.Node{}, changes: map[string][]string{},
	}
	f.top = (&includer{file: f, open: cfg.Open, stack: []string{name}}).load(src)
	for key, value := range entries(f.top) {
		if slices.Contains(globals, key.Value) {
			f.globals[key.Value] = value
		} else {
			f.jobs[key.Value] = jobEntry{key, value}
			f.names = append(f.names, key.Value)
		}
	}
	if len(f.names) == 0 {
		f.tree.fail(src.Errorf(nil,
			"the file has no job; a job is a name at the start of a line, and below it script: or run:%s", f.mayBeElsewhere()))
	}
	f.checkDefault()
	return f, f.tree.err
}

// checkDefault checks the keys of default.
func (f *File) checkDefault() {
	n := f.globals["default"]
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		f.tree.failf(n, "default must be a mapping, not %s", describe(n))
	}
	for key := range entries(n) {
		if !slices.Contains(defaults, key.Value) {
			f.tree.failf(key, "unknown key%s of default%s", lang.Quote(key.Value),
				lang.Suggest(key.Value, defaults, "; write it into the jobs"))
		}
	}
}

// Jobs returns the names of the jobs that can run, in the order of the file. The parallel builds of a job are one.
func (f *File) Jobs() []string {
	return slices.DeleteFunc(slices.Clone(f.names), func(name string) bool { return strings.HasPrefix(name, ".") })
}

// Builds returns the names of the builds of a job: its own, or those of its parallel builds, for which name may be that
// of one of them.
func (f *File) Builds(name string) ([]string, error) {
	f.tree.err = nil // that of another job
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
	return names, f.tree.err
}

// Check compiles all jobs, as parts of one pipeline, and returns the first mistake of each, in order. The errors have
// the type [*lang.Error]. Of parallel builds the first one is compiled. If inspect is not nil, it is called with each
// job that was compiled; Check adds its errors.
func (f *File) Check(inspect func(name string, job *Job) error) []error {
	var errs []error
	reported := map[string]bool{} // jobs may share the part with the mistake
	stages, jobs := f.stages(), f.Jobs()
	for _, name := range jobs {
		f.tree.err = nil
		d := f.find(name)
		d.check()
		d.checkPlace(stages, jobs)
		err := f.tree.err
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
	return errs
}

// topOf returns the mapping of jobs in the documents of src, and the header before it, nil without one.
func (f *File) topOf(src *lang.Source) (header, top *yaml.Node) {
	docs := src.Docs
	if len(docs) == 2 && find(docs[0], "spec") != nil {
		header, docs = f.tree.expand(src, docs[0], 0), docs[1:]
	}
	switch {
	case len(docs) == 0:
		return nil, f.tree.fail(src.Errorf(nil, "the file is empty; write a job: a name, and below it script: or run:"))
	case len(docs) > 1:
		return nil, f.tree.fail(src.Errorf(docs[1],
			"the file has one document, after one with a spec; this is one too many"))
	}
	if top = f.tree.expand(src, docs[0], 0); top.Kind != yaml.MappingNode {
		return nil, f.tree.fail(src.Errorf(docs[0],
			"the file must be a mapping of jobs, not %s; for a list of steps use the format steps", describe(top)))
	}
	return header, top
}

// notice adds a notice about the file, once.
func (f *File) notice(text string) {
	if !slices.Contains(f.notices, text) {
		f.notices = append(f.notices, text)
	}
}

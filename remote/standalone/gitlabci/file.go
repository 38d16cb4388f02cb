package gitlabci

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// File is a .gitlab-ci.yml with all its includes. It is for one goroutine at a time.
type File struct {
	// InContainer tells that the caller runs jobs in the containers that they describe: then no notice is about that.
	InContainer bool

	tree    *tree
	top     *yaml.Node            // a mapping
	whole   map[string]*yaml.Node // jobs, merged with those they extend
	notices []string
	left    []string // includes from elsewhere, which were left out
}

// globals are the top-level keys that are not jobs.
var globals = []string{
	"default", "include", "stages", "variables", "workflow", "spec",
	"image", "services", "cache", "before_script", "after_script",
}

// Read reads the file data, which errors call name. open reads a file of include: local by its slash-separated path
// from the top of the project; the path never leaves the project. open may be nil if there are no other files. other
// reads a file that is included from elsewhere: PROJECT/PATH, HOST/PATH of a URL or of a component, or templates/NAME.
// If it is nil, such files are left out. The error is a [*lang.Error] with the first mistake.
func Read(name string, data []byte, open, other func(path string) ([]byte, error)) (*File, error) {
	src, err := lang.Load(name, data)
	if err != nil {
		return nil, err
	}
	f := &File{tree: &tree{main: src, others: map[*yaml.Node]*lang.Source{}}, whole: map[string]*yaml.Node{}}
	f.top = (&includer{file: f, open: open, other: other, stack: []string{name}}).load(src)
	if len(f.jobs()) == 0 {
		f.tree.fail(src.Errorf(nil,
			"the file has no job; a job is a name at the start of a line, and below it script: or run:%s", f.mayBeElsewhere()))
	}
	return f, f.tree.err
}

// Jobs returns the names of the jobs that can run, in the order of the file.
func (f *File) Jobs() []string {
	return slices.DeleteFunc(f.jobs(), func(name string) bool { return strings.HasPrefix(name, ".") })
}

// jobs is Jobs plus the hidden jobs, which others extend.
func (f *File) jobs() []string {
	return slices.DeleteFunc(keys(f.top), func(key string) bool { return slices.Contains(globals, key) })
}

// Check compiles all jobs, as parts of one pipeline, and returns the first mistake of each, in order. The errors have
// the type [*lang.Error]. A job that starts another pipeline is checked too, but not compiled. If inspect is not nil,
// it is called with each job that was compiled; Check adds its errors.
func (f *File) Check(inspect func(name string, job *Job) error) []error {
	var errs []error
	reported := map[string]bool{} // jobs may share the part with the mistake
	for _, name := range f.Jobs() {
		f.tree.err = nil
		d := f.find(name)
		d.check()
		d.checkPlace()
		err := f.tree.err
		if err == nil && findKey(d.node, "trigger") == nil {
			var job *Job
			if job, err = f.Job(name, nil); err == nil && inspect != nil {
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

// topOf returns the mapping of jobs in the documents of src.
func (f *File) topOf(src *lang.Source) *yaml.Node {
	docs := src.Docs
	if len(docs) == 2 && find(docs[0], "spec") != nil {
		docs = docs[1:]
		f.notice("spec of the file: only a server fills in its inputs")
	}
	switch {
	case len(docs) == 0:
		return f.tree.fail(src.Errorf(nil, "the file is empty; write a job: a name, and below it script: or run:"))
	case len(docs) > 1:
		return f.tree.fail(src.Errorf(docs[1], "the file has one document, after one with a spec; this is one too many"))
	}
	top := f.tree.expand(src, docs[0], 0)
	if top.Kind != yaml.MappingNode {
		return f.tree.fail(src.Errorf(docs[0],
			"the file must be a mapping of jobs, not %s; for a list of steps use the format steps", describe(top)))
	}
	return top
}

// notice adds a notice about the file, once.
func (f *File) notice(text string) {
	if !slices.Contains(f.notices, text) {
		f.notices = append(f.notices, text)
	}
}

package gitlabci

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// File is a .gitlab-ci.yml with all it includes. It is for one goroutine at a time.
type File struct {
	tree    *tree
	top     *yaml.Node            // a mapping
	whole   map[string]*yaml.Node // jobs with what they extend
	notices []string
}

// globals are the keys at the top of a file that are not jobs.
var globals = []string{
	"default", "include", "stages", "variables", "workflow", "spec",
	"image", "services", "cache", "before_script", "after_script",
}

// Read reads the file data, which errors call name. open reads a file that include: local names, by its path
// from the top of the project, which is slash-separated and never leaves that; nil if there are none. The
// error is a [*lang.Error] with the first mistake found.
func Read(name string, data []byte, open func(path string) ([]byte, error)) (*File, error) {
	src, err := lang.Load(name, data)
	if err != nil {
		return nil, err
	}
	f := &File{tree: &tree{main: src, others: map[*yaml.Node]*lang.Source{}}, whole: map[string]*yaml.Node{}}
	in := &includer{file: f, open: open, stack: []string{name}}
	if f.top, err = in.load(src); err != nil {
		return nil, err
	}
	if len(f.jobs()) == 0 {
		return nil, src.Errorf(nil,
			"there is no job in it; a job is a name at the start of a line, and below it script: or run:")
	}
	return f, nil
}

// Jobs returns the names of the jobs that can be run, in the order of the file.
func (f *File) Jobs() []string {
	return slices.DeleteFunc(f.jobs(), func(name string) bool { return strings.HasPrefix(name, ".") })
}

// jobs is Jobs with those that only others extend.
func (f *File) jobs() []string {
	return slices.DeleteFunc(keys(f.top), func(key string) bool { return slices.Contains(globals, key) })
}

// Check compiles all jobs, and returns the first mistake of each that has one, in their order. The errors are
// of the type [*lang.Error].
func (f *File) Check() []error {
	var errs []error
	said := map[string]bool{} // what is wrong with a part that several jobs share
	for _, name := range f.Jobs() {
		if _, err := f.Job(name, nil); err != nil && !said[err.Error()] {
			said[err.Error()] = true
			errs = append(errs, err)
		}
	}
	return errs
}

// topOf returns the mapping in a text's documents.
func (f *File) topOf(src *lang.Source) (*yaml.Node, error) {
	docs := src.Docs
	if len(docs) == 2 && find(docs[0], "spec") != nil {
		docs = docs[1:]
		f.notice("spec of the file: inputs are the server's to fill in")
	}
	switch {
	case len(docs) == 0:
		return nil, src.Errorf(nil, "the file is empty; write a job: a name, and below it script: or run:")
	case len(docs) > 1:
		return nil, src.Errorf(docs[1], "there is one document, after one with a spec; this is another")
	}
	top, err := f.tree.expand(src, docs[0], 0)
	if err != nil {
		return nil, err
	}
	if top.Kind != yaml.MappingNode {
		return nil, src.Errorf(docs[0],
			"the file must be a mapping of jobs, not %s; for a list of steps use the format steps", describe(top))
	}
	return top, nil
}

// notice adds to what is to be told of the file, once.
func (f *File) notice(text string) {
	if !slices.Contains(f.notices, text) {
		f.notices = append(f.notices, text)
	}
}

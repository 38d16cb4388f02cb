package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/remote/standalone"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// buildMark stands for the name of a build in --output-file.
const buildMark = "{build}"

// tracePattern returns the file of each build's trace, a name with {build} in it, for the value text of --output-file.
// If text is a directory, its files are named after the builds; it is made if its name ends in /. Empty means no
// traces.
func tracePattern(text string, builds int) (string, error) {
	return buildPattern(text, "trace", builds)
}

// buildPattern is tracePattern for any file of a build.
func buildPattern(text, what string, builds int) (string, error) {
	if text == "" {
		return "", nil
	}
	if strings.HasSuffix(text, "/") && !strings.Contains(text, buildMark) {
		if err := os.MkdirAll(text, 0o755); err != nil {
			return "", err
		}
	}
	if info, err := os.Stat(text); err == nil && info.IsDir() {
		text = filepath.Join(text, buildMark+"."+what+".json")
	}
	if builds > 1 && !strings.Contains(text, buildMark) {
		return "", fmt.Errorf("%s: there are %d builds, each with a %s; name a directory (one that ends in / is made), or "+
			"put %s into the name", text, builds, what, buildMark)
	}
	if strings.Contains(filepath.Dir(text), buildMark) {
		return text, errors.New(buildMark + " must be in the name of the file, not of its directory")
	}
	if err := standalone.CheckOutputFile(text); err != nil {
		return "", err
	}
	return text, nil
}

// withTrace returns job with its trace written to the file of pattern. say is called if that fails.
func withTrace(job connector.Job, pattern, build string, say func(string)) connector.Job {
	if pattern == "" {
		return job
	}
	f := &traceFile{path: strings.ReplaceAll(pattern, buildMark, build)}
	job.Trace = f
	job.OnTrace = func(err error) {
		if err = f.end(err); err != nil {
			say(fmt.Sprintf("%s: there is no trace: %v", build, err))
		}
	}
	return job
}

// traceFile is a file that the first write makes. It is for one goroutine at a time.
type traceFile struct {
	path string
	file *trace.File // nil before
}

func (f *traceFile) Write(p []byte) (int, error) {
	if f.file == nil {
		var err error
		if f.file, err = trace.Create(f.path, 0); err != nil {
			return 0, err
		}
	}
	return f.file.Write(p)
}

// end commits the file or, if err tells that it is not complete, discards it.
func (f *traceFile) end(err error) error {
	file := f.file
	f.file = nil
	switch {
	case file == nil && err == nil:
		return errors.New("it is empty")
	case file == nil:
		return err
	case err != nil:
		file.Discard()
		return err
	default:
		return file.Commit()
	}
}

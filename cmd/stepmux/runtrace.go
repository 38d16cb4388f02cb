package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/remote/step/trace"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
)

// buildMark stands for the name of a build in --output-file and --provenance.
const buildMark = "{build}"

// runFiles are the flags of the files that a run writes for each build. There is no --subject: the files are on the
// VMs. After prepare the names are patterns with a buildMark; an empty one is for no file.
type runFiles struct {
	traces      string
	provenances string
	provenanceFlags
	remarks bool        // the traces are also read for the annotations and summaries of jobs
	lost    atomic.Bool // a file could not be written on this machine
}

func (f *runFiles) register(fl *pflag.FlagSet) {
	fileFlag(fl, &f.provenances, "provenance", "write SLSA provenance of each build to this `FILE`, whose name has "+
		"{build} for the build, or into this directory")
	fl.StringVar(&f.builder, "builder-id", "", builderUsage)
	fileFlag(fl, &f.signKey, "sign-key", signUsage)
	fl.StringVar(&f.traces, "output-file", "", "write the trace of each build to this `FILE`, whose name has {build} "+
		"for the build, or into this directory, which is created if its name ends in /")
	grouped(fl, fileGroup)
}

// prepare checks the flags of a run of files, with this number of builds. passphrase is the command for the passphrases
// of keys. Provenance and remarks are made from traces: without --output-file they are in a temporary directory, which
// remove removes.
func (f *runFiles) prepare(
	ctx context.Context, files []string, builds int, passphrase []string,
) (remove func(), err error) {
	if f.signKey != "" {
		f.passphrase = passphrase
	}
	if err := f.checkProvenance(ctx, f.provenances); err != nil {
		return nil, err
	}
	if f.traces, err = buildPattern(f.traces, "trace", builds); err != nil {
		return nil, fmt.Errorf("--output-file: %w", err)
	}
	if f.provenances, err = buildPattern(f.provenances, "provenance", builds); err != nil {
		return nil, fmt.Errorf("--provenance: %w", err)
	}
	inputs := make([]flagFile, len(files))
	for i, file := range files {
		inputs[i] = flagFile{"the job", file}
	}
	results := []flagFile{{"--output-file", f.traces}, {"--provenance", f.provenances}}
	if err := areApart(inputs, results...); err != nil {
		return nil, err
	}
	if f.provenances == "" && !f.remarks || f.traces != "" {
		return func() {}, nil
	}
	dir, err := makeTempDir(ctx, "traces-")
	if err != nil {
		return nil, systemError(fmt.Errorf("make directory for traces: %w", err))
	}
	f.traces = filepath.Join(dir.path, buildMark+".trace.json")
	return func() { _ = dir.remove() }, nil
}

// buildPattern turns the value of a flag into the pattern for a file of each build. what names the file in errors. If
// text is a directory, its files are named after the builds; it is created if its name ends in /.
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
		return "", errors.New(buildMark + " must be in the name of the file, not of its directory")
	}
	return text, standalone.CheckOutputFile(text)
}

// unlessLost returns err, the result of the builds. If they succeeded, but a file of one could not be written, it
// returns an error.
func (f *runFiles) unlessLost(err error) error {
	if err == nil && f.lost.Load() {
		return withCode(exitSystem, nil) // the line of traced has the reason
	}
	return err
}

// traced returns job with the files of the build. say is called if one cannot be written.
func (f *runFiles) traced(job connector.Job, build string, say func(string)) connector.Job {
	if f.traces == "" {
		return job
	}
	file := &traceFile{path: f.traceOf(build)}
	job.Trace = file
	job.OnTrace = func(err error) {
		if err = file.end(err); err != nil {
			if file.failed { // else the step runner may be one that makes no traces
				f.lost.Store(true)
			}
			say(fmt.Sprintf("%s: there is no trace: %v", build, status.Convert(err).Message())) // a manager's, perhaps
			return
		}
		if err := f.writeProvenance(file.path, build); err != nil {
			f.lost.Store(true)
			say(fmt.Sprintf("%s: there is no provenance: %v", build, err))
		}
	}
	return job
}

// traceOf returns the name of the file with the trace of a build.
func (f *runFiles) traceOf(build string) string {
	return strings.ReplaceAll(f.traces, buildMark, build)
}

// stepsOf returns the reports of the steps of a build, from its trace. Without a trace, of which traced tells, the list
// is empty.
func (f *runFiles) stepsOf(build string) []standalone.StepReport {
	if !f.remarks {
		return nil
	}
	t, err := trace.Read(f.traceOf(build))
	if err != nil {
		return nil
	}
	return standalone.ReportOf(t).Steps
}

// writeProvenance writes the provenance of a build, if that was asked for, from its trace.
func (f *runFiles) writeProvenance(file, build string) error {
	if f.provenances == "" {
		return nil
	}
	t, err := trace.Read(file)
	if err != nil {
		return err
	}
	return f.write(strings.ReplaceAll(f.provenances, buildMark, build), t, filepath.Base(file), "")
}

// traceFile is a file that the first write makes. It is for one goroutine at a time.
type traceFile struct {
	path   string
	file   *recording.File // nil before
	failed bool            // it could not be written
}

func (f *traceFile) Write(p []byte) (n int, err error) {
	defer func() { f.failed = f.failed || err != nil }()
	if f.file == nil {
		if f.file, err = recording.Create(f.path, 0); err != nil {
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
	case file == nil:
		return cmp.Or(err, errors.New("the trace is empty"))
	case err != nil:
		file.Discard()
		return err
	default:
		err = file.Commit()
		f.failed = err != nil
		return err
	}
}

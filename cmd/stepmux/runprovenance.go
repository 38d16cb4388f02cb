package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// runProvenance are the flags of provenance for builds on VMs. There is no --subject: the files are on the VMs.
type runProvenance struct {
	file    string
	pattern string // of the files, one for each build; empty for none
	provenanceFlags
}

func (p *runProvenance) register(fl *pflag.FlagSet) {
	fl.StringVar(&p.file, "provenance", "", "write SLSA provenance of each build to this file, with {build} for the "+
		"name of the build, or into this directory")
	fl.StringVar(&p.builder, "builder-id", "", builderUsage)
}

// prepare checks the flags of a run with this number of builds. Provenance is made from traces: if traces is empty it
// returns a pattern in a temporary directory, which end removes.
func (p *runProvenance) prepare(traces string, builds int) (pattern string, end func(), err error) {
	end = func() {}
	if err := p.checkProvenance(p.file); err != nil || p.file == "" {
		return traces, end, err
	}
	if p.pattern, err = buildPattern(p.file, "provenance", builds); err != nil {
		return traces, end, fmt.Errorf("--provenance: %w", err)
	}
	if traces != "" {
		return traces, end, nil
	}
	dir, err := os.MkdirTemp("", "stepmux-traces-")
	if err != nil {
		return traces, end, fmt.Errorf("make directory for traces: %w", err)
	}
	return filepath.Join(dir, buildMark+".trace.json"), func() { _ = os.RemoveAll(dir) }, nil
}

// of returns job with a hook that writes its provenance from its trace, the file of pattern. say is called if that
// fails.
func (p *runProvenance) of(job connector.Job, pattern, build string, say func(string)) connector.Job {
	if p.pattern == "" {
		return job
	}
	file, traced := strings.ReplaceAll(pattern, buildMark, build), job.OnTrace
	job.OnTrace = func(err error) {
		traced(err)
		if err != nil {
			return // the missing trace was reported
		}
		t, err := trace.Read(file)
		if err == nil {
			err = p.write(strings.ReplaceAll(p.pattern, buildMark, build), t, filepath.Base(file), "")
		}
		if err != nil {
			say(fmt.Sprintf("%s: there is no provenance: %v", build, err))
		}
	}
	return job
}

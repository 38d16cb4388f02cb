package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/internal/standalone/whole/carry"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// executor returns what carries out the jobs of a whole pipeline, which runs with cfg.
func (f *localFlags) executor(cfg whole.Config) (carry.Executor, error) {
	local := carry.Local{Config: cfg.Config, CachesDir: cfg.CachesDir}
	if !f.inContainer.wanted() {
		return local, nil
	}
	d, err := f.daemonHere()
	if err != nil {
		return nil, err
	}
	d.own = true
	local.Run = func(ctx, abort context.Context, j *standalone.Job, cfg standalone.Config) (*standalone.Report, error) {
		if f.inContainer.ofJob && len(j.Container) == 0 && j.Source.Kind == trace.FromGitHub {
			fmt.Fprintln(cfg.Stderr, "note: the job names no container: it runs on this machine itself")
			return standalone.Run(ctx, abort, j, cfg)
		}
		spec, err := f.contained(j, cfg.WorkDir)
		if err != nil {
			return nil, err
		}
		return f.runContained(ctx, abort, j, cfg, *spec, d)
	}
	return local, nil
}

// checkImages returns an error if a job of p, or of a pipeline that it starts, cannot have a container. Values that other
// jobs make are not known yet: those of an image are checked when its job starts.
func (f *localFlags) checkImages(p *whole.Pipeline) error {
	if !f.inContainer.wanted() {
		return nil
	}
	for _, j := range p.Jobs {
		var err error
		switch {
		case j.Trigger != nil && j.Trigger.Child != nil:
			err = f.checkImages(j.Trigger.Child)
		case j.Prepare != nil && j.Trigger == nil:
			err = f.checkImage(j)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *localFlags) checkImage(j *whole.Job) error {
	prepared, err := j.Prepare(nil)
	if err == nil {
		_, err = containerOf(prepared.Job)
	}
	if err == nil && f.inContainer.ofJob && !bytes.Contains(prepared.Container, []byte("image")) {
		err = errNoImage
	}
	if err != nil {
		return fmt.Errorf("the job %.64q: %w", j.Name, err)
	}
	return nil
}

// giveBackTime bounds the time for giving files back.
const giveBackTime = time.Minute

// giveBack makes the files that the user of a container has made in dir those of the owner of dir. Otherwise a user who
// is not root could neither read nor remove them.
func giveBack(ctx context.Context, b *connector.Connector, id, dir string, show io.Writer) {
	if os.Geteuid() == 0 {
		return
	}
	result, err := b.Execute(ctx, connector.Job{ID: id + "-files", WorkDir: dir, Job: &stepmuxv1.Job{
		Script: `chown -R "$(stat -c %u:%g .)" .`, Timeout: durationpb.New(giveBackTime),
	}}, show)
	if err != nil || result.Status != connector.Succeeded {
		fmt.Fprintf(show, "the files that the user of the container has made may stay in %s: chown there: %s %v", dir,
			result.Message, err)
	}
}

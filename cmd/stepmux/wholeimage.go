package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/jobplace"
	"github.com/stepmux/stepmux/internal/standalone/whole"
	"github.com/stepmux/stepmux/internal/standalone/whole/carry"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// executor returns the executor of the jobs of a whole pipeline, which runs with of.
func (f *localFlags) executor(of whole.Config) (carry.Executor, error) {
	git := carry.NewRepositories(of.Git, of.TempDir)
	local := carry.Local{Config: of.Config, CachesDir: of.CachesDir, Git: git}
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
		if len(of.Git.Names) > 0 {
			j = trusting(j, cfg.WorkDir)
		}
		return f.runContained(ctx, abort, j, cfg, *spec, d)
	}
	return local, nil
}

// trusting returns the job with a setting for git in its environment: dir is a repository to use, although it belongs
// to the user of this machine and not to that of the container. A job with settings of this kind keeps its own.
func trusting(j *standalone.Job, dir string) *standalone.Job {
	its := *j
	its.Env = map[string]string{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": dir}
	if _, has := j.Env["GIT_CONFIG_COUNT"]; has {
		clear(its.Env)
	}
	maps.Copy(its.Env, j.Env)
	return &its
}

// checkImages returns an error if it is certain that a job of p can have no container.
func (f *localFlags) checkImages(p *whole.Pipeline) error {
	if !f.inContainer.wanted() {
		return nil
	}
	return jobplace.Each(p, func(j *standalone.Job, _ *place.Spec) error {
		if f.inContainer.ofJob && !bytes.Contains(j.Container, []byte("image")) {
			return errNoImage
		}
		return nil
	})
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

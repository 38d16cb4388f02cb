package remote

import (
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/job/service"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/fetch"
)

// jobs returns the part of the job store's configuration that cfg tells.
func (cfg *ServeConfig) jobs() (jobs job.Config, err error) {
	jobs.Version, jobs.Keep = cfg.Version, cfg.keep()
	if len(cfg.PassEnv) > 0 {
		pass, err := engine.ParsePassEnv(cfg.PassEnv)
		if err != nil {
			return jobs, fmt.Errorf("--pass-env: %w", err)
		}
		jobs.PassEnv = &pass
	}
	if cfg.UnsafeExports != "" {
		policy, err := engine.ParseUnsafeExports(cfg.UnsafeExports)
		if err != nil {
			return jobs, fmt.Errorf("--unsafe-exports: %w", err)
		}
		jobs.UnsafeExports = &policy
	}
	return jobs, nil
}

// openJobs opens the job store of the build, configured by cfg, in its directory dir, and the step service in front of
// it. The steps that jobs fetch are in cacheDir, which builds share; every other file of a job is in dir. If this
// process is killed, the shims of the jobs' processes remove dir.
func openJobs(cfg job.Config, dir, cacheDir string, options ...grpc.ServerOption) (*jobRunner, error) {
	components, err := fetch.New(fetch.Config{Dir: cacheDir})
	if err != nil {
		return nil, err
	}
	starter := new(proc.Starter)
	cfg.Dir, cfg.OrphanDir, cfg.Starter, cfg.Fetcher = dir, dir, starter, components
	store, err := job.New(cfg)
	if err != nil {
		return nil, errors.Join(err, components.Close())
	}
	return &jobRunner{server: service.NewServer(store, options...), stop: store.Shutdown, close: func() error {
		defer starter.Close()
		return errors.Join(store.Close(), components.Close())
	}}, nil
}

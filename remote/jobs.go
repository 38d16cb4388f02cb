package remote

import (
	"fmt"

	"google.golang.org/grpc"

	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/job/service"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// jobs returns the part of the job store's configuration that cfg tells.
func (cfg *ServeConfig) jobs() (jobs job.Config, err error) {
	jobs.Version = cfg.Version
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

// fetchCommand is the command of this program that fetches steps. The file at its path may be another one by now.
var fetchCommand = []string{"/proc/self/exe", "steps", "fetch"}

// openJobs opens the job store of the build, configured by cfg, in its directory dir, and the step service in front of
// it. The steps that jobs fetch are in cacheDir, which builds share; every other file of a job is in dir. If this
// process is killed, the shims of the jobs' processes remove dir.
func openJobs(cfg job.Config, dir, cacheDir string, options ...grpc.ServerOption) (*jobRunner, error) {
	starter := new(proc.Starter)
	cfg.Dir, cfg.OrphanDir, cfg.Starter = dir, dir, starter
	cfg.Fetcher = &component.Fetcher{Command: fetchCommand, Dir: cacheDir}
	store, err := job.New(cfg)
	if err != nil {
		return nil, err
	}
	server := service.NewServer(store, options...)
	return &jobRunner{server: server, warm: store.Warm, stop: store.Shutdown, close: func() error {
		defer starter.Close()
		return store.Close()
	}}, nil
}

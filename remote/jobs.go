package remote

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/job/service"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/fetch"
	"github.com/stepmux/stepmux/remote/walls"
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
// process is killed, the init of the jobs' processes removes dir.
func openJobs(
	cfg job.Config, level walls.Level, dir, cacheDir string, options ...grpc.ServerOption,
) (*jobRunner, error) {
	components, err := fetch.New(fetch.Config{Dir: cacheDir})
	if err != nil {
		return nil, err
	}
	init := &proc.Init{Room: room(level, dir, cmp.Or(cacheDir, fetch.DefaultDir())), OrphanDir: dir}
	cfg.Dir, cfg.Init, cfg.Fetcher = dir, init, components
	store, err := job.New(cfg)
	if err != nil {
		return nil, errors.Join(err, components.Close())
	}
	return &jobRunner{server: service.NewServer(store, options...), stop: store.Shutdown, close: func() error {
		return errors.Join(store.Close(), init.Close(), components.Close())
	}}, nil
}

// room returns where the processes of the build in dir live, which cannot change these files and this program.
func room(level walls.Level, dir string, readOnly ...string) walls.Spec {
	spec := walls.Spec{Level: level, Dir: dir, Shell: os.Getenv("SHELL"), ReadOnly: readOnly}
	if base := filepath.Dir(dir); wire.IsSocketBase(filepath.Base(base)) {
		spec.Base = base
	}
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		spec.Home = home
	}
	if program, err := os.Executable(); err == nil {
		spec.ReadOnly = append(spec.ReadOnly, program)
	}
	return spec
}

package remote

import (
	"errors"

	"google.golang.org/grpc"

	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/job/service"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/fetch"
)

// openJobs opens the job store of the build in its directory dir, and the step service in front of it. The steps that
// jobs fetch are in cacheDir, which builds share; every other file of a job is in dir. If this process is killed, the
// shims of the jobs' processes remove dir. version is the version of this program.
func openJobs(dir, cacheDir, version string, options ...grpc.ServerOption) (*jobRunner, error) {
	components, err := fetch.New(fetch.Config{Dir: cacheDir})
	if err != nil {
		return nil, err
	}
	starter := new(proc.Starter)
	store, err := job.New(job.Config{Dir: dir, OrphanDir: dir, Starter: starter, Fetcher: components, Version: version})
	if err != nil {
		return nil, errors.Join(err, components.Close())
	}
	return &jobRunner{server: service.NewServer(store, options...), stop: store.Shutdown, close: func() error {
		defer starter.Close()
		return errors.Join(store.Close(), components.Close())
	}}, nil
}

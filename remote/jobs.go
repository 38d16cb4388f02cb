package remote

import (
	"errors"

	"google.golang.org/grpc"

	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/job/service"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/fetch"
)

// openJobs opens the job store of the build in its directory, in which all that jobs leave is but for the
// steps they fetched, and puts the step service before it. Those steps are in cacheDir, which is shared. If
// this process is killed, what is left of the jobs' processes removes the directory. version is that of this program.
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

package remote

import (
	"google.golang.org/grpc"

	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/service"
)

// openJobs opens the job store of the build in its directory, in which all that jobs leave is, and puts
// the step service before it. If this process is killed, what is left of the jobs' processes removes
// the directory.
func openJobs(dir string, options ...grpc.ServerOption) (*jobRunner, error) {
	starter := new(proc.Starter)
	store, err := job.New(job.Config{Dir: dir, OrphanDir: dir, Starter: starter})
	if err != nil {
		return nil, err
	}
	return &jobRunner{server: service.NewServer(store, options...), stop: store.Shutdown, close: func() error {
		defer starter.Close()
		return store.Close()
	}}, nil
}

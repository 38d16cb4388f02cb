package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/actionservices"
	"github.com/stepmux/stepmux/internal/boundedhttp"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/checkout"
	"github.com/stepmux/stepmux/internal/standalone/githubpipeline"
	"github.com/stepmux/stepmux/remote/jobcache"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// jobServices are the services for the actions in the jobs of a workflow: artifacts, which end with the command, and
// the caches of the project on this machine. They begin with the first job. The owner calls close. It is safe for
// concurrent use.
type jobServices struct {
	ctx    context.Context // of the command
	scopes []string
	caches string

	open   func() error           // begins the services, once
	listen func() (string, error) // listens on the loopback interface, once, and returns the URL
	temp   *tempDir
	server *actionservices.Server
	http   *boundedhttp.Server // nil before listen
}

// newJobServices returns the services for a workflow or for steps, or nil if no job of it can use an action.
func newJobServices(ctx context.Context, src standalone.Source) *jobServices {
	is := false
	switch src.Format {
	case standalone.GitHub:
		is = bytes.Contains(src.Text, []byte("uses"))
	case standalone.Steps, standalone.JSON:
		is = usesActions(src.Text)
	case standalone.GitLabCI:
	}
	if !is {
		return nil
	}
	return servicesOf(ctx, src)
}

// usesActions reports whether steps may use actions: by the key action, or as those of a workflow's job.
func usesActions(steps []byte) bool {
	has := func(text string) bool { return bytes.Contains(steps, []byte(text)) }
	return has("action:") || has(`"action":`) || has("builtin://github/job") && has("uses")
}

// servicesOf returns the services for jobs of the project and the commit of src.
func servicesOf(ctx context.Context, src standalone.Source) *jobServices {
	s := &jobServices{ctx: ctx, scopes: githubpipeline.CacheScopes(src)}
	s.open, s.listen = sync.OnceValue(s.begin), sync.OnceValues(s.beginHere)
	if base, err := os.UserCacheDir(); err == nil {
		s.caches = engine.CachesOf(base, engine.LocalProject(checkout.Repository(ctx, src.WorkDir)))
	}
	return s
}

// begin begins the services.
func (s *jobServices) begin() (err error) {
	if s.temp, err = makeTempDir(s.ctx, "services-"); err != nil {
		return err
	}
	dir := filepath.Join(s.temp.path, "artifacts")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	s.server = actionservices.New(actionservices.Config{Dir: dir, Caches: s.caches})
	return nil
}

// beginHere lets jobs on this machine itself reach the services, and returns their URL.
func (s *jobServices) beginHere() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	s.http = boundedhttp.ServeFiles(listener, s.server, nil)
	return "http://" + listener.Addr().String(), nil
}

// wholeRun is the run of the jobs of a whole workflow, and of a job by itself.
const wholeRun = "1"

// register registers a job of a run, and returns its token and a function for its end; see [actionservices.Server].
func (s *jobServices) register(run string) (token string, end func() (made bool), err error) {
	if err := s.open(); err != nil {
		return "", nil, err
	}
	token, end = s.server.Begin(actionservices.Job{Run: run, Name: "job", Scopes: s.scopes})
	return token, end, nil
}

// ofJobHere registers a job on this machine itself; see [standalone.Config].
func (s *jobServices) ofJobHere() (_ engine.Services, end func() (made bool), err error) {
	token, end, err := s.register(wholeRun)
	if err != nil {
		return engine.Services{}, nil, err
	}
	url, err := s.listen()
	if err != nil {
		end()
	}
	return engine.Services{URL: url, Token: token}, end, err
}

// of returns the services for a job on a VM or in a container, as for [connector.Job]. made is set if the job makes
// artifacts. A nil s has no services.
func (s *jobServices) of(made *bool) func() (*connector.Services, func(), error) {
	if s == nil {
		return nil
	}
	return func() (*connector.Services, func(), error) {
		token, end, err := s.register(wholeRun)
		if err != nil {
			return nil, nil, err
		}
		services, closeDoor := s.door(token)
		return services, func() {
			closeDoor()
			*made = end() || *made
		}, nil
	}
}

// alone is of for a build that has a run for itself: nothing else finds its artifacts, which end with it.
func (s *jobServices) alone(build string) func() (*connector.Services, func(), error) {
	return func() (*connector.Services, func(), error) {
		token, end, err := s.register(build)
		if err != nil {
			return nil, nil, err
		}
		services, closeDoor := s.door(token)
		return services, func() {
			closeDoor()
			end()
			s.server.Forget(s.ctx, build)
		}, nil
	}
}

func (s *jobServices) door(token string) (*connector.Services, func()) {
	door := s.server.Door(nil)
	return &connector.Services{Token: token, Take: door.Take}, door.Close
}

// close ends the services, and removes the artifacts.
func (s *jobServices) close() (err error) {
	if s.http != nil {
		s.http.Close()
	}
	if s.server != nil {
		s.server.Close()
		if s.caches != "" {
			jobcache.Sweep(s.ctx, filepath.Dir(s.caches))
		}
	}
	if s.temp != nil {
		err = s.temp.remove()
	}
	return err
}

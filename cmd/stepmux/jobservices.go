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

// newJobServices returns the services for a workflow, or nil if no job of it can use an action.
func newJobServices(ctx context.Context, src standalone.Source) *jobServices {
	if src.Format != standalone.GitHub || !bytes.Contains(src.Text, []byte("uses")) {
		return nil
	}
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

// register registers a job, and returns its token and a function for its end; see [actionservices.Server].
func (s *jobServices) register() (token string, end func() (made bool), err error) {
	if err := s.open(); err != nil {
		return "", nil, err
	}
	token, end = s.server.Begin(actionservices.Job{Run: "1", Name: "job", Scopes: s.scopes})
	return token, end, nil
}

// ofJobHere registers a job on this machine itself; see [standalone.Config].
func (s *jobServices) ofJobHere() (_ engine.Services, end func() (made bool), err error) {
	token, end, err := s.register()
	if err != nil {
		return engine.Services{}, nil, err
	}
	url, err := s.listen()
	if err != nil {
		end()
	}
	return engine.Services{URL: url, Token: token}, end, err
}

// of registers a job on a VM or in a container. A nil s has no services.
func (s *jobServices) of() (_ *connector.Services, end func() (made bool), err error) {
	if s == nil {
		return nil, func() bool { return false }, nil
	}
	token, ended, err := s.register()
	if err != nil {
		return nil, nil, err
	}
	door := s.server.Door(nil)
	return &connector.Services{Token: token, Take: door.Take}, func() bool {
		door.Close()
		return ended()
	}, nil
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

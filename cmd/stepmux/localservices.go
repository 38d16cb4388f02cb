package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/stepmux/stepmux/internal/actionservices"
	"github.com/stepmux/stepmux/internal/boundedhttp"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/checkout"
	"github.com/stepmux/stepmux/internal/standalone/gitlabci"
	"github.com/stepmux/stepmux/remote/jobcache"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// localServices are the services for the actions in the jobs of a workflow on this machine: artifacts, which end with
// the command, and the caches of the project. They listen on the loopback interface once the first job begins. The
// owner calls close. It is safe for concurrent use.
type localServices struct {
	ctx    context.Context // of the command
	scopes []string
	caches string

	begun  sync.Once
	err    error // of the begin
	temp   *tempDir
	url    string
	server *actionservices.Server
	http   *boundedhttp.Server
}

// newLocalServices returns the services for a workflow, or nil if no job of it can use an action.
func newLocalServices(ctx context.Context, src standalone.Source) *localServices {
	if src.Format != standalone.GitHub || !bytes.Contains(src.Text, []byte("uses")) {
		return nil
	}
	s := &localServices{ctx: ctx, scopes: cacheScopes(src.Predefined)}
	if base, err := os.UserCacheDir(); err == nil {
		s.caches = engine.CachesOf(base, engine.LocalProject(checkout.Repository(ctx, src.WorkDir)))
	}
	return s
}

// cacheScopes returns the references whose caches a job finds, as with GitHub: its own and the default branch.
func cacheScopes(vars []gitlabci.Variable) (scopes []string) {
	for _, of := range []struct{ name, prefix string }{
		{"CI_COMMIT_TAG", "refs/tags/"}, {"CI_COMMIT_BRANCH", "refs/heads/"}, {"CI_DEFAULT_BRANCH", "refs/heads/"},
	} {
		i := slices.IndexFunc(vars, func(v gitlabci.Variable) bool { return v.Name == of.name && v.Value != "" })
		if i < 0 {
			continue
		}
		if ref := of.prefix + vars[i].Value; !slices.Contains(scopes, ref) {
			scopes = append(scopes, ref)
		}
	}
	return scopes
}

// begin registers a job; see [standalone.Config].
func (s *localServices) begin() (_ action.Services, end func() (made bool), err error) {
	s.begun.Do(func() {
		if s.temp, s.err = makeTempDir(s.ctx, "services-"); s.err != nil {
			return
		}
		var listener net.Listener
		if listener, s.err = net.Listen("tcp", "127.0.0.1:0"); s.err != nil {
			return
		}
		dir := filepath.Join(s.temp.path, "artifacts")
		if s.err = os.Mkdir(dir, 0o700); s.err != nil {
			listener.Close()
			return
		}
		s.server = actionservices.New(actionservices.Config{Dir: dir, Caches: s.caches})
		s.http = boundedhttp.ServeFiles(listener, s.server, nil)
		s.url = "http://" + listener.Addr().String()
	})
	if s.err != nil {
		return action.Services{}, nil, s.err
	}
	token, end := s.server.Begin(actionservices.Job{Run: "1", Name: "job", Scopes: s.scopes})
	return action.Services{URL: s.url, Token: token}, end, nil
}

// close ends the services, and removes the artifacts.
func (s *localServices) close() (err error) {
	if s.http != nil {
		s.http.Close()
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

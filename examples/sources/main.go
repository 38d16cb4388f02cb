// Command sources serves the steps of the example job.yml, one step of each source: it runs a git server, a server of
// zip archives and a registry on this machine until Ctrl-C, and prints the commands that run the job.
package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
)

//go:embed job.yml local git zip image
var files embed.FS

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := serve(ctx)
	stop()
	os.Exit(code)
}

// serve serves until ctx ends, and returns the exit code.
func serve(ctx context.Context) (code int) {
	h := &host{ctx: ctx}
	defer func() {
		switch p := recover(); {
		case p == errFailed: //nolint:errorlint // it is that very value
			code = 1
		case p != nil:
			panic(p)
		}
	}()
	defer h.end()
	dir, err := os.MkdirTemp("", "stepmux-example-")
	if err == nil {
		h.Cleanup(func() { _ = os.RemoveAll(dir) })
		err = os.CopyFS(filepath.Join(dir, "project"), files)
	}
	if err != nil {
		h.Errorf("make directory for the example: %v", err)
		h.FailNow()
	}
	s := fetchtest.ServeSources(h, dir, files) //nolint:contextcheck // h has it
	project := filepath.Join(dir, "project")
	vars := fmt.Sprintf("--var PROJECT=%s --var GIT=%s --var ZIP=%s --var IMAGE=%s", project, s.Git, s.Zip, s.Image)
	job := filepath.Join(project, "job.yml")
	fmt.Fprintf(os.Stdout, `The servers run until Ctrl-C. In another terminal:

  stepmux local %[1]s %[2]s --output-file trace.json --provenance provenance.json
  stepmux trace show trace.json
  stepmux replay trace.json
  stepmux run %[1]s %[2]s --output-file vm.json

The repository is %[3]s: commit to it, and replay still runs what the trace has.
`, job, vars, s.Repository.Dir)
	<-ctx.Done()
	return 0
}

// host stands in for a test.
type host struct {
	ctx      context.Context // as that of a test
	cleanups []func()
}

var errFailed = errors.New("the example cannot be served")

func (h *host) Helper()                  {}
func (h *host) Context() context.Context { return h.ctx }
func (h *host) Cleanup(f func())         { h.cleanups = append(h.cleanups, f) }
func (h *host) FailNow()                 { panic(errFailed) }

func (h *host) Errorf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

// end runs the clean-ups, the last one first.
func (h *host) end() {
	for _, f := range slices.Backward(h.cleanups) {
		f()
	}
	h.cleanups = nil
}

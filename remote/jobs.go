package remote

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/isolate"
	"github.com/stepmux/stepmux/remote/job"
	"github.com/stepmux/stepmux/remote/job/service"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/project"
	"github.com/stepmux/stepmux/remote/reach"
	"github.com/stepmux/stepmux/remote/step/action"
	"github.com/stepmux/stepmux/remote/step/component"
)

// jobs returns the configuration of the job store.
func (cfg *ServeConfig) jobs() (jobs job.Config, err error) {
	jobs.Version, jobs.Keep = cfg.Version, cfg.keep()
	jobs.Policy = cfg.Policy
	return jobs, cfg.Policy.Check()
}

// fetchCommand is the command of this program that fetches steps. It does not use the program's path: an update may
// have put another file there.
var fetchCommand = []string{"/proc/self/exe", "steps", "fetch"}

// archiveCommand is the beginning of the commands that pack and unpack archives.
var archiveCommand = []string{"/proc/self/exe", "steps"}

// openJobs opens the job store of the build in the directory dir, configured by cfg, and the step service in front of
// it. Fetched steps are in the cache directory, which builds share; all other files of jobs are in dir. init starts the
// jobs' processes. If this process is killed, init removes dir. The jobRunner closes init.
func openJobs(
	cfg job.Config, init *proc.Init, dir string, serve ServeConfig, options ...grpc.ServerOption,
) (*jobRunner, error) {
	mirrors, err := serve.Actions.Mirrors()
	if err != nil {
		return nil, err
	}
	init.Room = room(serve.Isolation, dir, cmp.Or(serve.CacheDir, component.DefaultDir()))
	init.OrphanDir = dir
	cfg.Dir, cfg.Init, cfg.Language = dir, init, action.New(serve.Actions)
	cfg.Fetcher = &component.Fetcher{
		Command: fetchCommand, Dir: serve.CacheDir, Mirrors: mirrors, Open: init.Open,
		Isolated: serve.Isolation != vmconfig.Off,
	}
	store, err := job.New(cfg)
	if err != nil {
		return nil, err
	}
	server := service.NewServer(store, options...)
	files := project.New(project.Config{
		Dir: dir, CacheDir: filepath.Join(cmp.Or(serve.CacheDir, component.DefaultDir()), "projects"),
		Command: archiveCommand, Start: init.Start,
	})
	files.Register(server)
	services := reach.New(dir, files.Shared)
	services.Register(server)
	return &jobRunner{server: server, warm: store.Warm, stop: store.Shutdown, close: func() error {
		files.Close()
		services.Close()
		return errors.Join(store.Close(), init.Close())
	}, clean: func() bool {
		level, _ := init.Isolation(context.Background()) // the init has ended
		return store.Undisturbed() && !services.Used() && (level == vmconfig.Processes || level == vmconfig.Private)
	}}, nil
}

// room describes the places that the processes of the build in dir see. They cannot change dir, readOnly and this
// program.
func room(level vmconfig.Level, dir string, readOnly ...string) isolate.Spec {
	spec := isolate.Spec{Level: level, Dir: dir, Shell: os.Getenv("SHELL"), ReadOnly: readOnly}
	if base := filepath.Dir(dir); wire.IsSocketBase(filepath.Base(base)) {
		spec.Base = base
	}
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		spec.Home = home
	}
	if program, err := os.Executable(); err == nil {
		spec.ReadOnly = append(spec.ReadOnly, programFiles(program)...)
	}
	return spec
}

// programFiles returns the files of the VM's end that belong to program, a stepmux-vm. For an uploaded program it is
// their directory, because stepmux-fetch may arrive there later.
func programFiles(program string) []string {
	dir := filepath.Dir(program)
	if wire.IsUploadDir(filepath.Base(dir)) {
		return []string{dir}
	}
	beside := filepath.Join(dir, wire.FetchProgram)
	if _, err := os.Stat(beside); err != nil {
		return []string{program}
	}
	return []string{program, beside}
}

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/jobplace"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
	"github.com/stepmux/stepmux/remote/step/engine"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// localContainer holds the flags for a job of local in a container of this machine's Docker daemon.
type localContainer struct {
	imageFlags
	ofJob bool // use the job's own image

	limits vmconfig.Limits

	own *place.Spec // what the job's keys image and services say
}

func (f *localContainer) register(fl *pflag.FlagSet) {
	f.imageFlags.register(fl)
	optionFlags(fl, f.limits.Flags())
	f.others = append(f.others, limitNames...)
}

// wanted reports whether the job is to run in a container.
func (f *localContainer) wanted() bool {
	return f.ofJob || f.spec.Image != "" || f.spec.Container != ""
}

// place returns where the job runs.
func (f *localFlags) place() (jobPlace, error) {
	if err := f.inContainer.check(f.inContainer.ofJob); err != nil {
		return jobPlace{}, err
	}
	if !f.inContainer.wanted() {
		return jobPlace{ready: f.notContained}, nil
	}
	switch {
	case f.inContainer.ofJob && cmp.Or(f.inContainer.spec.Image, f.inContainer.spec.Container) != "":
		return jobPlace{}, errors.New("use either --in-image, --image or --container")
	case len(f.inputs) > 0:
		return jobPlace{}, errors.New("--input: a job in a container takes variables (--var)")
	case f.cacheDir != "":
		return jobPlace{}, errors.New("--cache-dir: a job in a container keeps no steps")
	}
	if base, ok := strings.CutPrefix(f.actions.Base, "file://"); ok || base != "" && !strings.Contains(base, "://") {
		var err error // the container has a directory at the same path
		if f.actions.Base, err = filepath.Abs(base); err != nil {
			return jobPlace{}, fmt.Errorf("find the current directory: %w", err)
		}
	}
	at := jobPlace{}
	var spec *docker.Spec
	at.ready = func(j *standalone.Job) (err error) {
		dir, err := f.dir()
		if err == nil {
			spec, err = f.contained(j, dir)
		}
		return err
	}
	at.run = func(ctx, abort context.Context, j *standalone.Job, cfg standalone.Config) (*standalone.Report, error) {
		d, err := f.daemonHere()
		if err != nil {
			return nil, err
		}
		return f.runContained(ctx, abort, j, cfg, *spec, d)
	}
	return at, nil
}

// daemonHere is the Docker daemon of this machine.
type daemonHere struct {
	config instance.Config
	facts  docker.Daemon
	// own says that jobs have directories of their own: the files that they make there become those of this user.
	own bool
}

// daemonHere returns the Docker daemon of this machine, which answers.
func (f *localFlags) daemonHere() (*daemonHere, error) {
	d := &daemonHere{}
	return d, f.inContainer.configure(&d.config, true)
}

// notContained adds a note to a job in a steps file that names a container but runs without it. For a .gitlab-ci.yml
// there is such a note already.
func (f *localFlags) notContained(j *standalone.Job) error {
	if f.inContainer.own != nil {
		j.Notices = append(j.Notices, "image and services have no effect without --in-image")
	}
	return nil
}

// contained returns the container of a job, which has the directory of the job at the same path.
func (f *localFlags) contained(j *standalone.Job, dir string) (*docker.Spec, error) {
	box, own := &f.inContainer, f.inContainer.own
	if len(j.Container) > 0 {
		var err error
		if own, err = jobplace.Of(j); err != nil {
			return nil, err
		}
	}
	if box.ofJob && (own == nil || own.Image == "") {
		return nil, errNoImage
	}
	spec, err := box.container(own)
	if err != nil || spec.Container != "" {
		return spec, err
	}
	spec.Limit(box.limits)
	spec.Volumes = append(slices.Clone(spec.Volumes), dir+":"+dir)
	if base := f.actions.Base; base != "" && !strings.Contains(base, "://") {
		spec.Volumes = append(spec.Volumes, base+":"+base+":ro")
	}
	return spec, spec.Check()
}

var errNoImage = errors.New("--in-image: the job names no image; name one by --image")

// actionArgs returns the flags about actions for a step runner in a container. Environment variables of this machine
// that name programs do not apply there.
func (f *localFlags) actionArgs() (args []string) {
	for _, name := range []string{"actions-base", "require-pinned", "node", "docker", "docker-socket"} {
		if flag := f.inContainer.flags.Lookup(name); flag.Changed || name == "actions-base" && f.actions.Base != "" {
			args = append(args, "--"+name+"="+flag.Value.String())
		}
	}
	return args
}

// newTraceFile returns the file for a job's trace: the one that was asked for, or one for this process alone, which
// remove removes.
func newTraceFile(ctx context.Context, asked *standalone.Trace) (file *traceFile, remove func(), err error) {
	if asked != nil && asked.File != "" {
		return &traceFile{path: asked.File}, func() {}, nil
	}
	dir, err := makeTempDir(ctx, "local-")
	if err != nil {
		return nil, nil, fmt.Errorf("make directory for the trace: %w", err)
	}
	return &traceFile{path: filepath.Join(dir.path, "trace.json")}, func() { _ = dir.remove() }, nil
}

// jobOf returns a job with this text of its steps as a step runner takes it.
func (f *localFlags) jobOf(j *standalone.Job, text string, cfg standalone.Config) *stepmuxv1.Job {
	return stepmuxv1.PassingAll().With(f.policyFlags.options()).With(&stepmuxv1.Job{
		Steps: []byte(text), Variables: jobVars(j.Vars), Env: j.Env, MayFail: j.MayFail,
		Timeout: durationpb.New(cfg.Timeout), Grace: durationpb.New(cfg.Grace),
	})
}

// observe tells about a step that begins.
func observe(e connector.StepEvent, to func(engine.StepResult)) {
	if e.Status == engine.Running.String() {
		to(engine.StepResult{Path: []string{e.Name}, Name: e.Name, Status: engine.Running, Kind: engine.Command})
	}
}

// runContained runs the job in a container, and removes the container before it returns.
func (f *localFlags) runContained(
	ctx, abort context.Context, j *standalone.Job, cfg standalone.Config, spec docker.Spec, d *daemonHere,
) (report *standalone.Report, err error) {
	text, err := j.Text()
	if err != nil {
		return nil, err
	}
	show := serialise(&cfg)
	id := "local-" + strings.ToLower(rand.Text()[:10])
	c, err := docker.Start(ctx, docker.Config{
		Config: place.Config{BuildID: id, Programs: d.config.ContainerPrograms, Log: show},
		Daemon: &d.facts, Spec: spec,
		Dial: func(ctx context.Context) (net.Conn, error) {
			return d.config.Docker.Dial(ctx, new(net.Dialer).DialContext)
		},
	})
	if err != nil {
		return nil, err
	}
	alive := context.WithoutCancel(ctx)
	defer func() { err = errors.Join(err, c.Close(alive)) }()
	defer context.AfterFunc(abort, func() { _ = c.Close(alive) })() // the deferred Close above returns its result
	at := connector.Config{
		BuildID: id, Log: show, Options: vmconfig.Options{Isolation: vmconfig.Off}, ServeArgs: f.actionArgs(),
	}
	c.Configure(&at)
	b, err := connector.New(at)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close(alive)) }()
	if _, err := b.Connect(alive); err != nil {
		return nil, c.Explain(alive, err)
	}
	job := connector.Job{Job: f.jobOf(j, text, cfg), WorkDir: cfg.WorkDir, Image: c.Image(), Containers: c.Containers()}
	report, err = f.executeContained(ctx, b, c, job, cfg)
	if d.own {
		giveBack(alive, b, id, cfg.WorkDir, show)
	}
	return report, err
}

// executeContained executes the job in its container c.
func (f *localFlags) executeContained(
	ctx context.Context, b *connector.Connector, c *docker.Container, job connector.Job, cfg standalone.Config,
) (report *standalone.Report, err error) {
	alive := context.WithoutCancel(ctx)
	file, removeTrace, err := newTraceFile(ctx, cfg.Trace)
	if err != nil {
		return nil, err
	}
	defer removeTrace()
	made := false
	defer func() {
		if report != nil {
			report.Passing = made
		}
	}()
	var traced error
	job.Services, job.Stderr, job.Trace = f.services.of(&made), cfg.Stderr, file
	job.OnTrace = func(err error) { traced = file.end(err) }
	job.OnStep = func(e connector.StepEvent) { observe(e, cfg.Observe) }
	result, err := b.Execute(ctx, job, cfg.Stdout)
	if err != nil && ctx.Err() == nil {
		return nil, c.Explain(alive, err)
	}
	c.Note(alive, result.ExitCode)
	switch {
	case traced != nil && result.NothingStarted && result.Message != "":
		return nil, errors.New(result.Message)
	case traced != nil:
		return nil, fmt.Errorf("read how the job went: %w", traced)
	}
	return reportIn(file)
}

// reportIn returns the report of a job from its trace.
func reportIn(file *traceFile) (*standalone.Report, error) {
	t, err := trace.Read(file.path)
	if err != nil {
		return nil, err
	}
	return standalone.ReportOf(t), nil
}

// serialise makes the writers and Observe of cfg safe for several goroutines. It returns a writer for lines about the
// container, which are shown as notes.
func serialise(cfg *standalone.Config) io.Writer {
	var mu sync.Mutex
	to, observe := cfg.Stderr, cfg.Observe
	cfg.Stdout, cfg.Stderr = &lockedWriter{mu: &mu, to: cfg.Stdout}, &lockedWriter{mu: &mu, to: to}
	cfg.Observe = func(r engine.StepResult) {
		mu.Lock()
		defer mu.Unlock()
		if observe != nil {
			observe(r)
		}
	}
	return &lockedWriter{mu: &mu, to: to, before: []byte("note: ")}
}

// lockedWriter writes while it holds mu.
type lockedWriter struct {
	mu     *sync.Mutex
	to     io.Writer
	before []byte // written before each write
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.before) > 0 {
		_, err := w.to.Write(slices.Concat(w.before, bytes.TrimRight(p, "\n"), []byte("\n")))
		return len(p), err
	}
	return w.to.Write(p)
}

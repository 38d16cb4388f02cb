package whole

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/pipeline"
	"github.com/stepmux/stepmux/remote/archive"
)

// Config says how a pipeline runs.
type Config struct {
	// Config is that of each job. WorkDir is the directory of the project, and TempDir is for the directories of jobs.
	// Stdout, Stderr and Observe have no effect.
	standalone.Config
	// Files are the files of the project that jobs get, from WorkDir, with slashes.
	Files []string
	// Slots bounds the jobs that run at once. If zero, one.
	Slots int
	// Output returns the writers for the output of an attempt of a job, and a function that is called at its end.
	// Required.
	Output func(job string) (stdout, stderr io.Writer, end func())
	// Say gets lines about jobs: those about artifacts that are missing, or notices. It may be called from several
	// goroutines at once. Required.
	Say func(line string)
}

// runner runs a pipeline and its children.
type runner struct {
	cfg      Config
	life     context.Context // of the whole run
	abort    context.Context // ends when jobs are killed
	dir      string          // for the directories and archives of jobs
	project  string          // the archive of the project
	slots    chan struct{}
	children sync.WaitGroup // of child pipelines that no job waits for
	groups   groups

	mu      sync.Mutex      // guards the following
	number  int             // of directories
	systems []error         // failures of this machine
	told    map[string]bool // notices
}

// Run runs the pipeline to its end. When ctx ends, jobs get SIGTERM, their grace and SIGKILL, and no others start. When
// abort ends, they are killed. An error says that this machine could not run a job to its end.
func Run(ctx, abort context.Context, p *Pipeline, cfg Config) (report *Report, err error) {
	if err := Check(p); err != nil {
		return nil, err
	}
	r := &runner{cfg: cfg, life: ctx, abort: abort, told: map[string]bool{}, slots: make(chan struct{}, max(cfg.Slots, 1))}
	if r.dir, err = os.MkdirTemp(cfg.TempDir, "stepmux-pipeline-"); err != nil {
		return nil, fmt.Errorf("create temporary directory: %w", err)
	}
	defer func() {
		if rest := rmtree.Remove(r.dir); rest != nil {
			err = errors.Join(err, fmt.Errorf("remove temporary directory: %w", rest))
		}
	}()
	if err := r.pack(ctx); err != nil {
		return nil, fmt.Errorf("pack the files of the project: %w", err)
	}
	report, err = r.run(ctx, p, "")
	r.children.Wait()
	return report, errors.Join(append(r.systems, err)...)
}

// Check returns an error for a pipeline that cannot run here: one that starts pipelines of other projects. Run returns
// the same error before a job runs.
func Check(p *Pipeline) error {
	for _, j := range p.Jobs {
		if j.Trigger == nil {
			continue
		}
		if j.Trigger.Other != "" {
			return fmt.Errorf("the job %.64q starts another pipeline, which is not possible here: %s; leave the job out",
				j.Name, j.Trigger.Other)
		}
		if err := Check(j.Trigger.Child); err != nil {
			return err
		}
	}
	return nil
}

// pack makes the archive of the project.
func (r *runner) pack(ctx context.Context) error {
	found, err := archive.Named(r.cfg.WorkDir, r.cfg.Files, r.cfg.Say)
	if err != nil {
		return err
	}
	defer found.Close()
	r.project = filepath.Join(r.dir, "project")
	return archive.Replace(r.project, func(to *os.File) error {
		return found.Write(ctx, to, archive.TarZstd, "fastest")
	})
}

// run runs one pipeline. prefix stands before the names of its jobs.
func (r *runner) run(ctx context.Context, p *Pipeline, prefix string) (*Report, error) {
	c, end, err := r.carryOut(ctx, p, prefix)
	if err != nil {
		return nil, err
	}
	return c.report(end), nil
}

// carryOut carries the jobs of a pipeline out.
func (r *runner) carryOut(ctx context.Context, p *Pipeline, prefix string) (*carrier, *pipeline.Progress, error) {
	plan, err := pipeline.New(p.Graph)
	if err != nil {
		return nil, nil, err
	}
	for _, j := range p.Jobs {
		r.notices(prefix+j.Name, j.Notices)
	}
	c := &carrier{runner: r, pipeline: p, plan: plan, prefix: prefix, done: make([]made, len(p.Jobs))}
	end := plan.Run(ctx, c, pipeline.Config{
		Slots:   max(r.cfg.Slots, 1),
		Observe: func(node int, s pipeline.Status) { c.done[node].status = s },
	})
	return c, end, nil
}

// newDir returns a new directory.
func (r *runner) newDir() (string, error) {
	r.mu.Lock()
	r.number++
	n := r.number
	r.mu.Unlock()
	dir := filepath.Join(r.dir, strconv.Itoa(n))
	return dir, os.Mkdir(dir, 0o700)
}

// notices says the notices of a job, each text once.
func (r *runner) notices(name string, list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, text := range list {
		if !r.told[text] {
			r.told[text] = true
			r.cfg.Say(name + ": " + text)
		}
	}
}

// system keeps a failure of this machine.
func (r *runner) system(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.systems = append(r.systems, err)
}

// made has the outcome of a job, and the files and values that it gives to others.
type made struct {
	status  pipeline.Status
	began   time.Time // when the first attempt got its slot
	report  *Report   // of the builds of a job that opened
	archive string    // empty without artifacts
	values  map[string]string
}

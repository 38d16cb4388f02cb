package whole

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stepmux/stepmux/internal/rmtree"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/checkout"
	"github.com/stepmux/stepmux/internal/standalone/whole/carry"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/pipeline"
	"github.com/stepmux/stepmux/remote/archive"
	"github.com/stepmux/stepmux/remote/step/mask"
)

// Config says how a pipeline runs.
type Config struct {
	// Config is that of each job. WorkDir is the directory of the project, and TempDir is for the directories of jobs.
	// Stdout, Stderr and Observe have no effect.
	standalone.Config
	// Files are the files of the project that jobs get, from WorkDir, with slashes.
	Files []string
	// Git is a repository that stands beside these files in the archive. It may be empty.
	Git checkout.Copy
	// Project is the archive of these files and Git. If nil, Run makes it.
	Project *carry.Archive
	// Slots bounds the jobs that run at once. If zero, one.
	Slots int
	// Executor carries out the jobs. If nil, they run on this machine, in directories of their own.
	Executor carry.Executor
	// Output returns the writers for the output of an attempt of a job, and a function that is called at its end.
	// Required.
	Output func(job string) (stdout, stderr io.Writer, end func())
	// Name is the name of the pipeline on this machine. A run can be resumed by a later one of this name.
	Name string
	// Resume asks for the earlier run of this name: jobs that succeeded there do not run, and others get their artifacts
	// and values. The error is [ErrNothingToResume] if there is no such run, or if its pipeline was another one.
	Resume bool
	// Masked are the masked variables. Say gets no text with a value, as the key of a cache may have. A run that is
	// resumed must have those of the earlier one.
	Masked map[string]string
	// CachesDir is the directory with the caches of the project, and StateDir the one for the results of its runs and
	// the locks of its jobs. Both are DIR/PROJECT; what is in them is removed after 30 days without a use. Without
	// CachesDir there are no caches. Without StateDir a run cannot be resumed, and locks hold in this run only.
	CachesDir, StateDir string
	// Watch is called when the status of a job has changed, with the words of [JobReport]. It may be called from several
	// goroutines at once. May be nil.
	Watch func(job, status string)
	// Called is called with the outputs of a job of the pipeline itself that has called another one. May be nil.
	Called func(job string, outputs map[string]string)
	// Plays starts manual jobs. If nil, they do not run.
	Plays *Plays
	// Lock takes a lock for an attempt of a job, and returns a function that releases it. If nil, locks are files in
	// StateDir.
	Lock func(ctx context.Context, name string, a *carry.Attempt) (unlock func(), err error)
	// Enter waits until no other member of a group runs. The context that it returns ends with the cause Newer if this
	// member shall stop. The error is Newer if a newer member took its place, or ErrCancelled. Without an error, leave is
	// called; with one, the context is ctx. If nil, groups are files in StateDir.
	Enter func(ctx context.Context, m Member, tell func(string)) (own context.Context, leave func(), err error)
	// Began reports whether a job has begun in an earlier life of the run: then its builds end by themselves when the run
	// is cancelled. If not, cut says that the run was cancelled before, although its context may not have ended. May be
	// nil.
	Began func(job string) (began, cut bool)
	// WithTests says that the report shall have the tests of the jobs.
	WithTests bool
	// Say gets lines about jobs: those about artifacts that are missing, or notices. It may be called from several
	// goroutines at once. Required.
	Say func(line string)
}

// runner runs a pipeline and its children.
type runner struct {
	cfg      Config
	life     context.Context // of the whole run
	abort    context.Context // ends when jobs are killed
	dir      string          // for the directories of jobs
	shelf    carry.Shelf     // for the archives of jobs
	project  carry.Archive
	store    *store
	tests    testReports
	tracked  func() map[string]bool // the files of the project
	slots    chan struct{}
	children sync.WaitGroup // of child pipelines that no job waits for
	group    string         // of the run

	redundant redundancy

	mu      sync.Mutex      // guards the following
	systems []error         // failures of this machine
	told    map[string]bool // notices
	passing []string        // jobs whose artifacts end with the run
	jobs    int             // of the run, also of child pipelines
	tally   tally
	reports map[string]*Report // of child pipelines, by the names of the jobs that started them
}

// Run runs the pipeline to its end. When ctx ends, jobs get SIGTERM, their grace and SIGKILL, and no others start. When
// abort ends, they are killed. An error says that this machine could not run a job to its end.
func Run(ctx, abort context.Context, p *Pipeline, cfg Config) (report *Report, err error) {
	if err := Check(p); err != nil {
		return nil, err
	}
	cfg.Say = masking(cfg)
	r := &runner{
		cfg: cfg, abort: abort, told: map[string]bool{}, reports: map[string]*Report{}, group: p.Group,
		slots: make(chan struct{}, max(cfg.Slots, 1)),
	}
	r.tracked = sync.OnceValue(func() map[string]bool {
		all := make(map[string]bool, len(cfg.Files))
		for _, name := range cfg.Files {
			all[name] = true
		}
		return all
	})
	if r.dir, err = os.MkdirTemp(cfg.TempDir, "stepmux-pipeline-"); err != nil {
		return nil, fmt.Errorf("create temporary directory: %w", err)
	}
	defer func() {
		if rest := rmtree.Remove(r.dir); rest != nil {
			err = errors.Join(err, fmt.Errorf("remove temporary directory: %w", rest))
		}
	}()
	if cfg.Project != nil {
		r.project = *cfg.Project
	} else if r.project, err = r.pack(ctx); err != nil {
		return nil, fmt.Errorf("pack the files of the project: %w", err)
	}
	if p.original == "" {
		if p.original, err = p.digest(); err != nil {
			return nil, err
		}
	}
	ctx, leave, err := r.begin(ctx, p)
	switch {
	case newerIn(err) != nil:
		return p.notRun(err.Error(), exitReplaced), nil
	case errors.Is(err, ErrCancelled), err != nil && ctx.Err() != nil:
		return p.notRun("", 0), nil
	case err != nil:
		return nil, err
	}
	defer leave()
	r.life = ctx
	if r.store, err = openStore(ctx, p.original, cfg); err != nil {
		return nil, err
	}
	if r.shelf = carry.Shelf(r.dir); r.store != nil {
		r.shelf = carry.Shelf(r.store.dir)
	}
	if r.cfg.Executor == nil {
		r.cfg.Executor = carry.Local{Config: cfg.Config, CachesDir: cfg.CachesDir}
	}
	report, err = r.run(ctx, p, "")
	r.children.Wait()
	err = errors.Join(append(r.systems, err)...)
	if report != nil {
		if cause := newerIn(context.Cause(ctx)); cause != nil {
			report.replace(cause)
		}
		r.attach(report, "")
		if cfg.WithTests {
			report.Tests = r.tests.document()
		}
	}
	if kept := r.store.close(err == nil && report.isComplete()); kept != nil {
		cfg.Say(fmt.Sprintf("--resume may not find all of this run: %v", kept))
	}
	return report, err
}

// attach adds the reports of child pipelines to a report. prefix stands before the names of its jobs.
func (r *runner) attach(report *Report, prefix string) {
	for i := range report.Jobs {
		name := prefix + report.Jobs[i].Name
		if child := r.reports[name]; child != nil {
			report.Jobs[i].Child = child
			r.attach(child, name+Separator)
		}
	}
}

// Separator stands between the names of a job and of a job in the pipeline that it starts.
const Separator = " / "

// Check returns an error for a pipeline that cannot run here: one that starts pipelines of other projects. Run returns
// the same error before a job runs.
func Check(p *Pipeline) error {
	for _, j := range p.Jobs {
		if j.Trigger == nil {
			continue
		}
		if j.Trigger.Other != "" {
			return fmt.Errorf("the job %.64q starts another pipeline, which is not possible here: %s; leave the job out "+
				"by --skip, or all such jobs by --skip-trigger", j.Name, j.Trigger.Other)
		}
		if j.Trigger.Child == nil {
			continue
		}
		if err := Check(j.Trigger.Child); err != nil {
			return err
		}
	}
	return nil
}

// pack makes the archive of the project.
func (r *runner) pack(ctx context.Context) (carry.Archive, error) {
	found, err := archive.Named(r.cfg.WorkDir, r.cfg.Files, r.cfg.Say)
	if err != nil {
		return carry.Archive{}, err
	}
	defer found.Close()
	if err := found.Beside(r.cfg.Git.Dir, r.cfg.Git.Names); err != nil {
		return carry.Archive{}, err
	}
	return carry.Shelf(r.dir).Pack(ctx, found)
}

// run runs one pipeline. prefix stands before the names of its jobs.
func (r *runner) run(ctx context.Context, p *Pipeline, prefix string) (*Report, error) {
	c, end, err := r.carryOut(ctx, p, scope{prefix: prefix})
	if err != nil {
		return nil, err
	}
	return c.report(end), nil
}

// carryOut carries the jobs of a pipeline out.
func (r *runner) carryOut(ctx context.Context, p *Pipeline, of scope) (*carrier, *pipeline.Progress, error) {
	if !r.has(p.Jobs) {
		return nil, nil, errManyJobs
	}
	c := &carrier{runner: r, pipeline: p, scope: of, done: make([]made, len(p.Jobs))}
	graph := p.Graph
	graph.Nodes = slices.Clone(graph.Nodes)
	for i := range graph.Nodes {
		if _, ran := c.earlier(i); ran { // it waits for its needs only
			n := &graph.Nodes[i]
			n.Manual, n.Delay, n.Groups, n.Free = false, 0, nil, true
		}
		if r.cfg.Plays.has(c.name(i)) {
			graph.Nodes[i].Manual = false
		}
	}
	plan, err := pipeline.New(graph)
	if err != nil {
		return nil, nil, err
	}
	for _, j := range p.Jobs {
		r.notices(of.prefix+j.Name, j.Notices)
	}
	c.plan = plan
	play, leave := r.cfg.Plays.join(c)
	defer leave()
	end := plan.Run(ctx, c, pipeline.Config{
		Slots: max(r.cfg.Slots, 1), Play: play, Rests: true, Observe: func(node int, s pipeline.Status) {
			c.done[node].status = s
			if s.State == pipeline.Manual {
				r.cfg.Plays.again(c, node)
			}
			if s.State != pipeline.Running || !c.waits(node) { // started tells that of a job with steps
				c.watch(node, s.State)
			}
		},
	})
	return c, end, nil
}

// has adds jobs to those of the run, and reports whether these are not too many. A job that opens counts by its builds.
func (r *runner) has(jobs []*Job) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	more := 0
	for _, j := range jobs {
		if j.Open == nil {
			more++
		}
	}
	if r.jobs+more > pipeline.MaxNodes {
		return false
	}
	r.jobs += more
	return true
}

// masking returns the Say of cfg, for texts that may have values of masked variables.
func masking(cfg Config) func(string) {
	var secrets mask.Set
	for _, value := range cfg.Masked {
		_ = secrets.Add(value) // a job tells of one that is too short
	}
	return func(text string) { cfg.Say(termtext.Cut(secrets.Mask(text), maxJobLine)) } // cut last: not in a secret
}

// maxJobLine bounds a line about a job, in bytes: it may have a name of any length.
const maxJobLine = 1000

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

// pass notes a job whose artifacts end with the run.
func (r *runner) pass(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passing = append(r.passing, name)
}

// hasPassed reports whether there is such a job whose name begins with prefix.
func (r *runner) hasPassed(prefix string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.passing, func(name string) bool { return strings.HasPrefix(name, prefix) })
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
	archive carry.Archive
	values  map[string]string
	why     string
	resumed bool // the job ran in an earlier run
	anew    bool // a job that opens, or one before it, has run in this run
	remarks
}

package gitlabdoor

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/servercall"
)

// askPause is the time between two questions that the server answers at once, without a job.
const askPause = 3 * time.Second

// DoorConfig says which server a Door serves, and how.
type DoorConfig struct {
	// Name names the server in keys of the state, in logs and on the page: 1 to 32 of a-z 0-9 -. Required.
	Name string
	// URL is that of the server. Required.
	URL string
	// Token returns the token of the runner, glrt-... It is asked for again when the server does not know it. Required.
	Token func() (string, error)
	// TokenFile is the file of Token, for messages.
	TokenFile string
	// Image is that of jobs without one. If empty, those run on the VM itself, or in the manager's image.
	Image string
	// Labels are those that a VM must have for the jobs. Empty: all VMs.
	Labels map[string]string
	// Environment has variables for the steps of each job.
	Environment map[string]string
	// Files are those of TLS.
	Files servercall.Files
	// Limit bounds the jobs that run at once. If zero, only the slots do.
	Limit int
	// Share is that of the door among those that wait for slots. If zero, 1.
	Share int
}

var names = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// Check returns an error for a DoorConfig that is not valid.
func (cfg *DoorConfig) Check() error {
	switch {
	case !strings.HasPrefix(cfg.URL, "https://") && !strings.HasPrefix(cfg.URL, "http://"):
		return fmt.Errorf("the url %.160q: write that of the server, as https://gitlab.example.com", cfg.URL)
	case !names.MatchString(cfg.Name):
		return fmt.Errorf("the name %.40q: write 1 to 32 of a-z 0-9 -", cfg.Name)
	case cfg.Limit < 0:
		return fmt.Errorf("the limit %d: write a positive number", cfg.Limit)
	case strings.ContainsAny(cfg.Image, " \t\r\n"):
		return fmt.Errorf("the image %.160q: write it as ruby:3.4", cfg.Image)
	}
	return nil
}

// Party names the door among those that wait for slots.
func (cfg *DoorConfig) Party() string { return "gitlab." + cfg.Name }

// Door is a runner of one server. It is safe for concurrent use.
type Door struct {
	*jobdoor.Door
	cfg    DoorConfig
	client *Client // of no runner
	// acknowledges says that the server waits until a job is acknowledged. It is learned by the first job.
	acknowledges, learned atomic.Bool
	authorities           string       // certificates that the VMs trust at the server
	token                 atomic.Value // of the runner, shortened: a string
	numbers               numbers      // of the jobs
}

// numbers gives each job of a runner that runs the smallest number that no other has. The zero value is ready for use.
type numbers struct {
	mu   sync.Mutex // guards the following
	used map[int]bool
}

// take takes a number, or the smallest that is free if it is negative.
func (n *numbers) take(number int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.used == nil {
		n.used = map[int]bool{}
	}
	for i := 0; number < 0; i++ {
		if !n.used[i] {
			number = i
		}
	}
	n.used[number] = true
	return number
}

func (n *numbers) free(number int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.used, number)
}

// NewDoor returns a Door. It reads the files of TLS. The caller calls Serve.
func NewDoor(cfg DoorConfig, host jobdoor.Host) (*Door, error) {
	client, err := NewClient(Config{URL: cfg.URL, Files: cfg.Files, Info: Info{
		Name: "stepmux", Version: host.Version, Platform: runtime.GOOS, Architecture: runtime.GOARCH, Executor: "stepmux",
		Shell: "bash", Features: supported(),
	}})
	if err != nil {
		return nil, err
	}
	var authorities []byte
	if cfg.Files.CA != "" {
		if authorities, err = os.ReadFile(cfg.Files.CA); err != nil {
			return nil, err
		}
	}
	return &Door{
		Door: jobdoor.New(jobdoor.Config{Kind: "gitlab", Name: cfg.Name, URL: cfg.URL, Limit: cfg.Limit}, host), cfg: cfg,
		client: client, authorities: string(authorities),
	}, nil
}

// Serve takes jobs from the server until ctx ends, and returns when all that it has started has ended. Jobs that it has
// then go on: the next door of this name reports them.
func (d *Door) Serve(ctx context.Context) {
	defer d.client.Close()
	d.Door.Serve(ctx, d)
}

const kindRunner = "runner"

// supported are the features that jobs may need. Each is there.
func supported() map[string]bool {
	all := map[string]bool{}
	for _, name := range strings.Fields(`variables artifacts upload_multiple_artifacts upload_raw_artifacts
		artifacts_exclude refspecs cache fallback_cache_keys masking raw_variables multi_build_steps trace_checksum
		trace_size cancelable cancel_gracefully return_exit_code native_steps_integration two_phase_job_commit image
		services service_variables image_executor_opts`) {
		all[name] = true
	}
	return all
}

// system returns the system_id of this manager: each that uses a token has its own.
func (d *Door) system(ctx context.Context) (string, error) {
	key := d.Key(kindRunner)
	kept, err := d.Host().Kept(ctx, key)
	if err != nil || kept[key] != nil {
		return string(kept[key]), err
	}
	made := "r_" + rand.Text()[:12]
	return made, d.Host().Keep(ctx, key, []byte(made))
}

// enter returns a client of a runner that the server knows.
func (d *Door) enter(ctx context.Context) (*Client, error) {
	system, err := d.system(ctx)
	if err != nil {
		return nil, err
	}
	token, err := d.cfg.Token()
	if err != nil {
		return nil, fmt.Errorf("read the token of the runner: %w", err)
	}
	d.token.Store(shorten(token))
	client := d.client.As(token, system)
	_, err = client.Verify(ctx)
	return client, err
}

// Take implements jobdoor.Server.
func (d *Door) Take(life, term context.Context) {
	var client *Client
	d.Repeat(term, "use the runner", func() (err error) {
		client, err = d.enter(term)
		return err
	})
	if term.Err() != nil {
		return
	}
	d.Works()
	wait, last := jobdoor.FirstBackoff, ""
	full := 0 // so many times in a row, each slot has got a job: there may be many
	for term.Err() == nil {
		rooms := d.Reserve(term, min(max(full, 1), maxQuestions))
		if len(rooms) == 0 {
			continue
		}
		asked := time.Now()
		got := d.askAll(life, term, client, rooms, last)
		full++
		if got.jobs < len(rooms) {
			full = 0
		}
		switch status := StatusOf(got.err); {
		case got.jobs > 0:
			last = "" // there may be another one
		case got.err == nil && time.Since(asked) < askPause:
			last = got.update
			if d.Rest(term, jobdoor.Jittered(askPause)) { // a job has ended
				last = ""
			}
		case got.err == nil: // it was held
			last = got.update
		case status == http.StatusConflict: // another runner was faster
			last = ""
			_ = pause.For(term, jobdoor.FirstBackoff)
		default:
			last = ""
			d.Fails(term, "ask for a job", got.err)
			_ = pause.For(term, max(jobdoor.Jittered(wait), waitOf(got.err)))
			wait = min(2*wait, jobdoor.LastBackoff)
			if status == http.StatusForbidden { // the token may be another one now
				return
			}
			continue
		}
		d.Works()
		wait = jobdoor.FirstBackoff
	}
}

// maxQuestions bounds the questions for jobs at once.
const maxQuestions = 4

// taken is the outcome of questions for jobs: how many came, and the update of the queue then.
type taken struct {
	jobs   int
	update string
	err    error
}

// askAll asks for a job for each slot, at once, and begins those that it gets. The other slots are released.
func (d *Door) askAll(life, term context.Context, client *Client, rooms []jobdoor.Room, last string) (all taken) {
	outcomes := make([]taken, len(rooms))
	var asking sync.WaitGroup
	for i, room := range rooms {
		asking.Go(func() {
			job, now, err := d.ask(term, client, room, last)
			outcomes[i] = taken{update: now, err: err}
			if job == nil {
				room.Release()
				return
			}
			outcomes[i].jobs = 1
			d.begin(life, term, job, room)
		})
	}
	asking.Wait()
	for _, a := range outcomes {
		all = taken{all.jobs + a.jobs, cmp.Or(a.update, all.update), cmp.Or(all.err, a.err)}
	}
	return all
}

// errRecalled ends a question for whose slot another one waits.
var errRecalled = errors.New("another one waits for the slot")

// ask asks for a job. Only a server that waits for an acknowledgement may hold the question. It ends with the term,
// and when somebody else waits for the slot: a job whose answer is then lost goes to another runner. Other servers
// answer at once, and what they give at the end of the term is taken.
func (d *Door) ask(term context.Context, client *Client, room jobdoor.Room, last string) (*Job, string, error) {
	if !d.acknowledges.Load() {
		asking, stop := jobdoor.Beyond(term)
		defer stop()
		return client.Request(asking, "")
	}
	asking, cancel := context.WithCancelCause(term)
	defer cancel(nil)
	over := make(chan struct{})
	var watch sync.WaitGroup
	defer watch.Wait()
	defer close(over)
	recalled := room.Soften()
	watch.Go(func() {
		select {
		case <-recalled:
			cancel(errRecalled)
		case <-over:
		}
	})
	job, now, err := client.Request(asking, last)
	if errors.Is(context.Cause(asking), errRecalled) && job == nil {
		return nil, "", nil
	}
	return job, now, err
}

// record returns the record of a job that has come.
func (d *Door) record(job *Job) *record {
	token, _ := d.token.Load().(string)
	return &record{
		Job: job, Answer: job.Answer, Marks: jobdoor.NewMarks(), At: time.Now(),
		Runner: runnerFacts{
			Token: token, Version: d.Host().Version, Number: d.numbers.take(-1), Image: d.cfg.Image,
			CA: d.authorities,
		},
	}
}

// begin keeps a job and starts its report. room is released in any case.
func (d *Door) begin(life, term context.Context, job *Job, room jobdoor.Room) {
	r := d.record(job)
	t := newTask(d, r)
	t.fresh = true
	d.Begin(life, term, job.ID, r.encode, room, t.run)
}

// Resume implements jobdoor.Server.
func (d *Door) Resume(_ string, text []byte) (jobdoor.Report, error) {
	r := &record{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, err
	}
	if r.Job == nil || r.Job.ID <= 0 {
		return nil, errors.New("it has no job")
	}
	d.numbers.take(r.Runner.Number)
	return newTask(d, r).run, nil
}

package giteadoor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/sortedkeys"
)

const (
	// hintPause is the time between two questions with the version that the server has answered: then it looks for a task
	// only if something has changed. lookPause is the time after which it looks in any case.
	hintPause, lookPause = 500 * time.Millisecond, 15 * time.Second
)

// Config says which server a door serves, and how.
type Config struct {
	// Name names the server in keys of the state, in logs and on the page: 1 to 32 of a-z 0-9 -. Required.
	Name string
	// URL is that of the server. Required.
	URL string
	// Token returns the registration token. It is asked for if the server does not know this runner. Required.
	Token func() (string, error)
	// TokenFile and SecretFile are the files of Token and Secret, for messages.
	TokenFile, SecretFile string
	// Runner is the name of the runner on the server. Required.
	Runner string
	// Labels are those that the runner declares: a job runs here if they have all words of its runs-on. If empty,
	// DefaultLabels, those of Images, and those of the VMs.
	Labels []string
	// Images are those in which jobs run that have no container of their own, by a label of runs-on. The others run on a
	// VM itself.
	Images map[string]string
	// Environment has variables for the steps of each job.
	Environment map[string]string
	// Relayed says that jobs reach the server through the manager.
	Relayed bool
	// Ephemeral says that each task gets a runner of its own, which the server forgets with the task.
	Ephemeral bool
	// Limit bounds the tasks that run at once. If zero, only the slots do.
	Limit int
	// Secret returns the secret of the webhooks. If nil, they are refused.
	Secret func() (string, error)
	// Share is that of the door among those that wait for slots. If zero, 1.
	Share int
}

var names = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// Check returns an error for a Config that is not valid.
func (cfg *Config) Check() error {
	switch {
	case !strings.HasPrefix(cfg.URL, "https://") && !strings.HasPrefix(cfg.URL, "http://"):
		return fmt.Errorf("the url %.160q: write that of the server, as https://gitea.example.com", cfg.URL)
	case !names.MatchString(cfg.Name):
		return fmt.Errorf("the name %.40q: write 1 to 32 of a-z 0-9 -", cfg.Name)
	case slices.ContainsFunc(cfg.Labels, func(label string) bool { return !isLabel(label) }):
		return fmt.Errorf("the labels %.160q: write the words of runs-on, or with an image as NAME:docker://IMAGE",
			cfg.Labels)
	case cfg.Limit < 0:
		return fmt.Errorf("the limit %d: write a positive number", cfg.Limit)
	}
	return cfg.checkJobs()
}

// DefaultLabels are labels that each VM with Linux has by nature.
var DefaultLabels = []string{"ubuntu-latest", "self-hosted", "linux"}

// Party names the door among those that wait for slots.
func (cfg *Config) Party() string { return "gitea." + cfg.Name }

// labels returns the labels to declare.
func (d *Door) labels() []string { return d.cfg.Declared(d.Host().Labels()) }

// Declared returns the labels that the runner declares if the VMs have these labels.
func (cfg *Config) Declared(vms []map[string]string) []string {
	if len(cfg.Labels) > 0 {
		return cfg.Labels
	}
	all := append(slices.Clone(DefaultLabels), sortedkeys.Of(cfg.Images)...)
	for _, vm := range vms {
		for name, value := range vm {
			if all = append(all, name+"="+value); value == "true" {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Door is the runner of one server. It is safe for concurrent use.
type Door struct {
	*jobdoor.Door
	cfg    Config
	client *Client // not registered

	// Serve's goroutine has the following.
	declared []string  // labels
	askers   []*Client // each asks one question at a time
	single   bool      // the server gives one task in an answer
}

// New returns a Door. The caller calls Serve.
func New(cfg Config, host jobdoor.Host) *Door {
	return &Door{
		Door: jobdoor.New(jobdoor.Config{Kind: "gitea", Name: cfg.Name, URL: cfg.URL, Limit: cfg.Limit}, host), cfg: cfg,
		client: NewClient(cfg.URL),
	}
}

// Serve takes jobs from the server until ctx ends, and returns when all that it has started has ended. Tasks that it
// has then go on: the next door of this name reports them.
func (d *Door) Serve(ctx context.Context) {
	defer d.client.Close()
	d.Door.Serve(ctx, d)
}

// Take implements jobdoor.Server.
func (d *Door) Take(life, term context.Context) {
	runner, rooms := d.enter(term)
	if term.Err() != nil {
		jobdoor.Release(rooms)
		return
	}
	d.Works()
	if left := d.take(life, term, runner, rooms); left.Ephemeral {
		d.leave(life, left)
	}
}

// Resume implements jobdoor.Server.
func (d *Door) Resume(key string, text []byte) (jobdoor.Report, error) {
	r := &record{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, err
	}
	if r.Task == nil {
		return nil, errors.New("it has no task")
	}
	return newReport(d, r, key, true).run, nil
}

const kindRunner = "runner"

// register returns the runner that the server knows, with the labels of today. It registers a new one if needed.
func (d *Door) register(ctx context.Context) (runner Registration, err error) {
	kept, err := d.Host().Kept(ctx, d.Key(kindRunner))
	if err != nil {
		return runner, err
	}
	d.declared = d.labels()
	text := kept[d.Key(kindRunner)]
	switch {
	case text == nil || json.Unmarshal(text, &runner) != nil:
	case d.cfg.Ephemeral && !runner.Asked:
		d.Host().Logger.Warn("the runner from before ephemeral was set stays at the server: delete it there",
			"runner", runner.Name)
	default:
		err := d.client.As(runner).Declare(ctx, d.Host().Version, d.declared)
		if err == nil && runner.Ephemeral {
			err = d.Host().Forget(ctx, d.Key(kindRunner))
		}
		if err == nil || !isCode(err, codeUnauthenticated, codeNotFound) {
			return runner, err
		}
		d.Host().Logger.Warn("the server does not know this runner any more; it is registered anew", "error", err)
	}
	token, err := d.cfg.Token()
	if err != nil {
		return runner, fmt.Errorf("read the registration token: %w", err)
	}
	runner, err = d.client.Register(ctx, d.cfg.Runner, token, d.Host().Version, d.declared, d.cfg.Ephemeral)
	if err != nil {
		return runner, fmt.Errorf("register at %s: %w", d.cfg.URL, err)
	}
	if runner.Ephemeral { // it has its labels, and is not kept before the end
		d.Host().Logger.Debug("registered for one task", "runner", runner.Name)
		return runner, nil
	}
	if d.cfg.Ephemeral {
		d.Host().Logger.Warn("the server has no ephemeral runners: this one stays", "runner", runner.Name)
	}
	text, err = json.Marshal(runner)
	if err == nil {
		err = d.Host().Keep(ctx, d.Key(kindRunner), text)
	}
	if err == nil {
		err = d.client.As(runner).Declare(ctx, d.Host().Version, d.declared)
	}
	if err == nil {
		d.Host().Logger.Info("registered", "url", d.cfg.URL, "runner", runner.Name, "labels", d.declared)
	}
	return runner, err
}

// take takes tasks, each with a slot, until ctx, which is the term, ends, the server does not know the runner any
// more, or its labels change. An ephemeral runner takes one. rooms are slots for the first tasks; without, it waits
// for one. It returns the runner if it can still get a task.
func (d *Door) take(life, ctx context.Context, runner Registration, rooms []jobdoor.Room) (left Registration) {
	d.askers, d.single = nil, false
	for range maxQuestions {
		d.askers = append(d.askers, d.client.As(runner))
	}
	var version int64 // 0: the server looks for a task
	full := 0         // so many times in a row, each slot has got a task: there may be many
	looked := time.Now()
	for wait := jobdoor.FirstBackoff; ctx.Err() == nil; {
		waited := time.Now()
		if len(rooms) == 0 {
			if rooms = d.Reserve(ctx, min(max(full, 1), maxQuestions)); len(rooms) == 0 {
				continue
			}
		}
		if time.Since(waited) > hintPause || time.Since(looked) >= lookPause {
			version = 0
		}
		if version == 0 {
			looked = time.Now()
			if !slices.Equal(d.labels(), d.declared) { // the inventory has changed
				jobdoor.Release(rooms)
				return runner
			}
		}
		single := d.single
		got := d.ask(life, ctx, runner, version, rooms)
		full++
		if got.tasks < len(rooms) && single == d.single {
			full = 0
		}
		rooms = nil
		switch {
		case got.err != nil:
			version = 0
			if isCode(got.err, codeUnauthenticated) || runner.Ephemeral && mayBeLost(got.err) {
				return Registration{}
			}
			d.Fails(ctx, "ask for a task", got.err)
			_ = pause.For(ctx, jobdoor.Jittered(wait))
			wait = min(2*wait, jobdoor.LastBackoff)
			continue
		case got.tasks == 0:
			version = got.version
			if d.Rest(ctx, hintPause) { // a task has ended, or a webhook has come
				version = 0
			}
		case runner.Ephemeral:
			return Registration{}
		default:
			version = 0
		}
		d.Works()
		wait = jobdoor.FirstBackoff
	}
	jobdoor.Release(rooms)
	return runner
}

// maxQuestions bounds the questions for tasks at once. A Gitea needs 20 to 50 ms of its processors for each.
const maxQuestions = 4

// answer is that of the server to questions for tasks: how many it has given, and its version then.
type answer struct {
	tasks   int
	version int64
	err     error
}

// ask asks for a task for each slot, at once, and begins those that it gets. The other slots are released.
func (d *Door) ask(
	life, ctx context.Context, runner Registration, version int64, rooms []jobdoor.Room,
) (all answer) {
	size := len(rooms)
	if d.single {
		size = 1
	}
	answers := make([]answer, 0, len(rooms))
	var asking sync.WaitGroup
	for part := range slices.Chunk(rooms, size) {
		i := len(answers)
		answers = append(answers, answer{})
		asking.Go(func() { answers[i] = d.question(life, ctx, runner, d.askers[i], version, part) })
	}
	asking.Wait()
	for _, a := range answers {
		all.tasks += a.tasks
		all.version = max(all.version, a.version)
		all.err = cmp.Or(all.err, a.err)
	}
	d.single = d.single || size > 1 && all.tasks == 1
	return all
}

// question asks one question.
func (d *Door) question(
	life, ctx context.Context, runner Registration, client *Client, version int64, rooms []jobdoor.Room,
) (got answer) {
	asking, stop := jobdoor.Beyond(ctx) // a task whose answer is given up is lost
	defer stop()
	tasks, now, err := client.Fetch(asking, version, len(rooms))
	for i, task := range tasks {
		var room jobdoor.Room // a task too many waits for one
		if i < len(rooms) {
			room = rooms[i]
		}
		d.begin(life, ctx, &record{Task: task, Runner: runner, Marks: jobdoor.NewMarks()}, room)
	}
	jobdoor.Release(rooms[min(len(tasks), len(rooms)):])
	return answer{len(tasks), now, err}
}

// begin keeps a task and starts its report. room is released in any case.
func (d *Door) begin(life, term context.Context, r *record, room jobdoor.Room) {
	d.Begin(life, term, r.Task.ID, r.encode, room, newReport(d, r, d.TaskKey(r.Task.ID), false).run)
}

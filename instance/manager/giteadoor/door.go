package giteadoor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/internal/termtext"
)

const (
	// hintPause is the time between two questions with the version that the server has answered: then it looks for a task
	// only if something has changed. lookPause is the time after which it looks in any case.
	hintPause, lookPause = 500 * time.Millisecond, 15 * time.Second
	// firstBackoff and lastBackoff are the pauses after errors of a server. A server that comes back ends tasks that it
	// has not heard of for 10 minutes, those in which it was away included: a longer pause would come on top.
	firstBackoff, lastBackoff = time.Second, 30 * time.Second
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
func (d *Door) labels() []string { return d.cfg.Declared(d.host.Labels()) }

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
	cfg    Config
	host   Host
	client *Client // not registered
	tasks  sync.WaitGroup
	count  atomic.Int64  // of tasks
	taken  atomic.Int64  // tasks in all
	woken  chan struct{} // has room for one: there may be a task, or one has ended

	declared []string // labels; Serve's goroutine has it

	mu      sync.Mutex // guards the following
	state   string
	reason  string
	changed time.Time
	told    []string // errors since then that the log has
}

// The states of a door.
const (
	Registering = "registering" // the server does not know it yet
	Ready       = "ready"
	Away        = "away" // the server does not answer, or refuses
)

// Standing is how a door stands.
type Standing struct {
	Name, URL string
	// State is one of the states, since a time. Reason is why it is away.
	State, Reason string
	Since         time.Time
	// Tasks are those that it has now, and Taken counts those since the manager has started.
	Tasks, Taken int64
}

// Standing returns how the door stands.
func (d *Door) Standing() Standing {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Standing{d.cfg.Name, d.cfg.URL, d.state, d.reason, d.changed, d.count.Load(), d.taken.Load()}
}

// stands notes how the door stands, and reports whether that has changed.
func (d *Door) stands(state, reason string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == state && d.reason == reason {
		return false
	}
	if d.state != state {
		d.changed, d.told = time.Now(), nil
	}
	d.state, d.reason = state, reason
	return true
}

// New returns a Door. The caller calls Serve.
func New(cfg Config, host Host) *Door {
	d := &Door{
		cfg: cfg, host: host, client: NewClient(cfg.URL), woken: make(chan struct{}, 1), state: Registering,
		changed: time.Now(),
	}
	d.host.Logger = host.Logger.With("server", cfg.Name)
	return d
}

// Serve takes jobs from the server until ctx ends, and returns when all that it has started has ended. Tasks that it
// has then go on: the next door of this name reports them.
func (d *Door) Serve(ctx context.Context) {
	defer d.client.Close()
	for ctx.Err() == nil {
		term, stop, err := d.host.Term(ctx)
		if err == nil {
			d.serve(ctx, term)
			stop()
		}
	}
}

// serve serves while this manager may have tasks. life is Serve's context.
func (d *Door) serve(life, term context.Context) {
	defer d.tasks.Wait()
	resume := func() error { return d.resume(term) }
	d.repeat(term, "go on with its tasks", resume)
	d.tasks.Go(func() {
		for d.host.AwaitTasks(term) == nil {
			d.repeat(term, "go on with the tasks of other managers", resume)
		}
	})
	for term.Err() == nil {
		runner, room := d.enter(term)
		if term.Err() == nil {
			d.works()
			if left := d.take(life, term, runner, room); left.Ephemeral {
				d.leave(life, left)
			}
		} else if room != nil {
			room.Release()
		}
	}
}

// enter returns a runner that the server knows. An ephemeral one is made only when there is a slot for its task, which
// enter returns: no slot is held while the server does not answer.
func (d *Door) enter(ctx context.Context) (runner Registration, room Room) {
	d.repeat(ctx, "register", func() (err error) {
		if d.cfg.Ephemeral && d.awaitLimit(ctx) {
			if room, err = d.host.Reserve(ctx); err != nil {
				return err
			}
		}
		if runner, err = d.register(ctx); err != nil && room != nil {
			room.Release()
			room = nil
		}
		return err
	})
	return runner, room
}

// leave keeps an ephemeral runner that has had no task, for the next door. While a door has it, it is not kept: after a
// kill it may have a task of which nobody knows, and the server would give it no other.
func (d *Door) leave(ctx context.Context, runner Registration) {
	keeping, stop := beyond(ctx)
	defer stop()
	text, err := json.Marshal(runner)
	if err == nil {
		err = d.host.Keep(keeping, d.key(kindRunner), text)
	}
	if err != nil {
		d.host.Logger.Warn("an ephemeral runner without a task stays at the server", "runner", runner.Name, "error", err)
	}
}

// repeat repeats do until it succeeds or ctx ends. Pauses grow.
func (d *Door) repeat(ctx context.Context, what string, do func() error) {
	for wait := firstBackoff; ctx.Err() == nil; wait = min(2*wait, lastBackoff) {
		err := do()
		if err == nil && wait > firstBackoff {
			d.works()
		}
		if err == nil {
			return
		}
		d.fails(ctx, what, err)
		_ = pause.For(ctx, jittered(wait))
	}
}

// maxTold bounds the errors that are told while a server is away.
const maxTold = 16

// fails notes that something fails. Until the server answers again, each error is told once.
func (d *Door) fails(ctx context.Context, what string, err error) {
	text := termtext.Short(fmt.Sprintf("cannot %s: %v", what, err), maxErrorText)
	if ctx.Err() != nil || !d.stands(Away, text) {
		return
	}
	d.mu.Lock()
	isNew := len(d.told) < maxTold && !slices.Contains(d.told, text)
	if isNew {
		d.told = append(d.told, text)
	}
	d.mu.Unlock()
	if isNew {
		d.host.Logger.Warn("the door " + text)
	}
}

// works notes that the server answers.
func (d *Door) works() {
	if d.stands(Ready, "") {
		d.host.Logger.Info("the server answers")
	}
}

// key returns the key of the door's texts of a kind in the state.
func (d *Door) key(kind string) string { return "gitea." + d.cfg.Name + "." + kind }

const kindRunner, kindTask = "runner", "task"

// register returns the runner that the server knows, with the labels of today. It registers a new one if needed.
func (d *Door) register(ctx context.Context) (runner Registration, err error) {
	kept, err := d.host.Kept(ctx, d.key(kindRunner))
	if err != nil {
		return runner, err
	}
	d.declared = d.labels()
	text := kept[d.key(kindRunner)]
	switch {
	case text == nil || json.Unmarshal(text, &runner) != nil:
	case d.cfg.Ephemeral && !runner.Asked:
		d.host.Logger.Warn("the runner from before ephemeral was set stays at the server: delete it there",
			"runner", runner.Name)
	default:
		err := d.client.As(runner).Declare(ctx, d.host.Version, d.declared)
		if err == nil && runner.Ephemeral {
			err = d.host.Forget(ctx, d.key(kindRunner))
		}
		if err == nil || !isCode(err, codeUnauthenticated, codeNotFound) {
			return runner, err
		}
		d.host.Logger.Warn("the server does not know this runner any more; it is registered anew", "error", err)
	}
	token, err := d.cfg.Token()
	if err != nil {
		return runner, fmt.Errorf("read the registration token: %w", err)
	}
	runner, err = d.client.Register(ctx, d.cfg.Runner, token, d.host.Version, d.declared, d.cfg.Ephemeral)
	if err != nil {
		return runner, fmt.Errorf("register at %s: %w", d.cfg.URL, err)
	}
	if runner.Ephemeral { // it has its labels, and is not kept before the end
		d.host.Logger.Debug("registered for one task", "runner", runner.Name)
		return runner, nil
	}
	if d.cfg.Ephemeral {
		d.host.Logger.Warn("the server has no ephemeral runners: this one stays", "runner", runner.Name)
	}
	text, err = json.Marshal(runner)
	if err == nil {
		err = d.host.Keep(ctx, d.key(kindRunner), text)
	}
	if err == nil {
		err = d.client.As(runner).Declare(ctx, d.host.Version, d.declared)
	}
	if err == nil {
		d.host.Logger.Info("registered", "url", d.cfg.URL, "runner", runner.Name, "labels", d.declared)
	}
	return runner, err
}

// take takes tasks, each with a slot, until ctx, which is the term, ends, the server does not know the runner any more,
// or its labels change. An ephemeral runner takes one. room is a slot for the first task; nil: it waits for one. It
// returns the runner if it can still get a task.
func (d *Door) take(life, ctx context.Context, runner Registration, room Room) (left Registration) {
	client := d.client.As(runner)
	var version int64 // 0: the server looks for a task
	looked := time.Now()
	for wait := firstBackoff; ctx.Err() == nil; {
		waited := time.Now()
		if room == nil {
			if room = d.reserve(ctx); room == nil {
				continue
			}
		}
		if time.Since(waited) > hintPause || time.Since(looked) >= lookPause {
			version = 0
		}
		if version == 0 {
			looked = time.Now()
			if !slices.Equal(d.labels(), d.declared) { // the inventory has changed
				room.Release()
				return runner
			}
		}
		asking, stop := beyond(ctx) // a task whose answer is given up is lost
		tasks, now, err := client.Fetch(asking, version)
		stop()
		switch {
		case err != nil:
			room.Release()
			room, version = nil, 0
			if isCode(err, codeUnauthenticated) || runner.Ephemeral && mayBeLost(err) {
				return Registration{}
			}
			d.fails(ctx, "ask for a task", err)
			_ = pause.For(ctx, jittered(wait))
			wait = min(2*wait, lastBackoff)
			continue
		case len(tasks) == 0:
			room.Release()
			room, version = nil, now
			d.rest(ctx, &version)
		default:
			version = 0
			for _, task := range tasks { // Gitea gives one; only the first has the slot
				d.begin(life, ctx, &record{Task: task, Runner: runner, Marks: strings.ToLower(rand.Text()[:12])}, room)
				room = nil
			}
			if runner.Ephemeral {
				return Registration{}
			}
		}
		d.works()
		wait = firstBackoff
	}
	if room != nil {
		room.Release()
	}
	return runner
}

// mayBeLost reports whether the server may have answered a call that has failed.
func mayBeLost(err error) bool {
	if told, ok := errors.AsType[*CallError](err); ok {
		return told.Code == "unknown" // of a proxy before it
	}
	at, ok := errors.AsType[*net.OpError](err)
	return !ok || at.Op != "dial"
}

// reserve waits until a task may run, and for a slot. It returns nil at the end, or after a pause if no VM is left.
func (d *Door) reserve(ctx context.Context) Room {
	if !d.awaitLimit(ctx) {
		return nil
	}
	room, err := d.host.Reserve(ctx)
	if err == nil {
		return room
	}
	if ctx.Err() == nil {
		d.host.Logger.Warn("there is no slot for tasks", "error", err)
		_ = pause.For(ctx, lookPause)
	}
	return nil
}

// awaitLimit waits until fewer tasks run than the limit. It returns false at the end.
func (d *Door) awaitLimit(ctx context.Context) bool {
	for d.cfg.Limit > 0 && d.count.Load() >= int64(d.cfg.Limit) {
		select {
		case <-d.woken:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// rest waits until the next question. After the end of a task, and a webhook, the server looks in any case.
func (d *Door) rest(ctx context.Context, version *int64) {
	timer := time.NewTimer(hintPause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.woken:
		*version = 0
	case <-ctx.Done():
	}
}

// jittered returns a time between three quarters of wait and five quarters.
func jittered(wait time.Duration) time.Duration {
	var b [1]byte
	_, _ = rand.Read(b[:]) // never fails
	return wait*3/4 + wait/2*time.Duration(b[0])/255
}

// begin keeps a task and starts its report, unless the term has ended: then the manager that has the task does so. room
// is released in any case.
func (d *Door) begin(life, term context.Context, r *record, room Room) {
	key := d.key(kindTask) + "." + strconv.FormatInt(r.Task.ID, 10)
	keep := func() error {
		keeping, stop := beyond(life) // the server counts on it
		defer stop()
		text, err := r.encode()
		if err == nil {
			err = d.host.KeepTask(keeping, key, text)
		}
		return err
	}
	if err := keep(); err != nil {
		d.host.Logger.Error("a task cannot be kept", "task", r.Task.ID, "error", err)
		d.repeat(life, "keep a task", keep)
	}
	if term.Err() == nil {
		d.start(term, r, key, room)
	} else if room != nil {
		room.Release()
	}
}

// endGrace is how long a question to the server may still be answered, and the answer be kept, at the end of a door.
const endGrace = 10 * time.Second

// beyond returns a context that ends endGrace after ctx. The caller calls stop.
func beyond(ctx context.Context) (later context.Context, stop func()) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() {
		_ = pause.For(later, endGrace)
		cancel()
	})
	return later, func() {
		unhook()
		cancel()
	}
}

// start starts the report of a task.
func (d *Door) start(ctx context.Context, r *record, key string, room Room) {
	d.count.Add(1)
	d.taken.Add(1)
	d.tasks.Go(func() {
		defer func() {
			d.count.Add(-1)
			d.wake()
		}()
		if room != nil {
			defer room.Release()
		}
		newReport(d, r, room == nil).run(ctx, room)
		if ctx.Err() != nil {
			return // the next door goes on, or another manager
		}
		d.repeat(ctx, "forget a task", func() error { return d.host.ForgetTask(ctx, key) })
	})
}

// resume goes on with the tasks of a door before, and of managers that have ended.
func (d *Door) resume(term context.Context) error {
	return d.host.Tasks(term, d.key(kindTask), func(key string, text []byte) {
		r := &record{}
		if err := json.Unmarshal(text, r); err != nil || r.Task == nil {
			d.host.Logger.Error("a task in the state cannot be read", "key", key, "error", err)
			return
		}
		d.start(term, r, key, nil)
	})
}

package kubernetes

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/mux"
)

const (
	// DefaultLinger is how long a build continues without a manager if Config.Linger is zero.
	DefaultLinger = 5 * time.Minute

	defaultStartTimeout = 10 * time.Minute
	// defaultLife bounds a pod whose build has no timeout. deadlineSlack is how long a pod may outlive its build.
	defaultLife, deadlineSlack = 24 * time.Hour, 5 * time.Minute
	// endGrace is how long a pod may take to end by itself, and how long to wait for the reason of its end.
	endGrace = 5 * time.Second
	// shortStop bounds Close if its ctx has ended.
	shortStop = time.Second
	// shakyTimeout is how long a pod may wait for a reason that may be transient.
	shakyTimeout = 20 * time.Second
	// maxPods is how many pods a build may use: one that fails because a part of its node restarted is replaced.
	maxPods = 4
)

// Config says which pod to make, where.
type Config struct {
	// Config describes the build. If its Linger is zero, DefaultLinger.
	place.Config
	// Cluster is where the pod is made. Required.
	Cluster *Cluster
	// Spec describes the pod.
	Spec Spec
	// Timeout is the timeout of the build's job. If zero, 24h. The cluster ends a pod that still exists a while later
	// (activeDeadlineSeconds).
	Timeout time.Duration
	// StartTimeout bounds the time until the pod runs, with the pull of its images. If zero, 10m.
	StartTimeout time.Duration
}

// Pod is a build's pod. It makes the links of the build's connector.Connector: when an exec is cut, the next one
// continues where it stopped. One goroutine watches the pod. It is safe for concurrent use.
type Pod struct {
	cfg     Config
	cluster *Cluster
	name    string
	uid     string // empty until the pod is created

	life    context.Context // ends with Close
	endLife context.CancelFunc
	alive   context.Context // ends when the pod can no longer be used; its cause says why
	end     context.CancelCauseFunc
	wg      sync.WaitGroup
	first   *link // for Configure; set before Start or Attach returns

	mu      sync.Mutex        // guards the following
	seen    object            // the newest state of the pod
	pulls   map[string]string // the last errors of image pulls, by container
	changed chan struct{}
	blind   error // why the API server does not let us watch the pod
	removed bool  // the API server no longer has the pod

	closeOnce sync.Once
	closeErr  error
	left      atomic.Bool // Close leaves the pod
}

// Start creates a pod, uploads the step runner into it, and starts its relay. If the pod fails because of its node,
// another one is tried, at most three times: nothing of the build has run yet. ctx bounds the start, and has no
// effect afterwards. The caller closes the Pod. If Start fails, nothing of the pod is left, unless the error says so.
func Start(ctx context.Context, cfg Config) (*Pod, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if err := cfg.Spec.Check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.StartTimeout,
		fmt.Errorf("the pod was not ready within %v", cfg.StartTimeout))
	defer cancel()
	for pods := 1; ; pods++ {
		p := newPod(ctx, cfg, podName(cfg.BuildID))
		err := p.start(ctx)
		if err == nil {
			return p, nil
		}
		left := p.Close(context.WithoutCancel(ctx))
		if pods == maxPods || !isPodsFault(err) || ctx.Err() != nil {
			return nil, errors.Join(err, left)
		}
		p.cfg.Say("another pod is made: %v", err)
		cfg.Logger.Warn("another pod is made for the build", "error", err, "left", left)
	}
}

// check checks the configuration and sets its defaults.
func (cfg *Config) check() error {
	if cfg.Cluster == nil {
		return errors.New("kubernetes: Config.Cluster is nil")
	}
	if cfg.Timeout < 0 {
		return fmt.Errorf("kubernetes: the timeout %v is negative", cfg.Timeout)
	}
	cfg.Linger = cmp.Or(cfg.Linger, DefaultLinger)
	cfg.StartTimeout = cmp.Or(cfg.StartTimeout, defaultStartTimeout)
	return cfg.Check()
}

func newPod(ctx context.Context, cfg Config, name string) *Pod {
	p := &Pod{
		cfg: cfg, cluster: cfg.Cluster, name: name, changed: make(chan struct{}), pulls: map[string]string{},
	}
	p.life, p.endLife = context.WithCancel(context.WithoutCancel(ctx))
	p.alive, p.end = context.WithCancelCause(context.WithoutCancel(ctx))
	return p
}

// podName returns a unique name for the pod of a build.
func podName(build string) string {
	var salt [4]byte
	_, _ = rand.Read(salt[:]) // never fails
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(build))
	return fmt.Sprintf("stepmux-%s-%x", clean[:min(len(clean), 40)], salt)
}

// start does the work of Start. On an error, Close cleans up.
func (p *Pod) start(ctx context.Context) error {
	p.wg.Go(func() { p.cluster.reap(p.life) })
	if err := p.create(ctx); err != nil {
		return err
	}
	p.wg.Go(func() { p.watch(p.life) })
	if err := p.bring(ctx); err != nil {
		return p.withEnd(err)
	}
	s, err := p.await(ctx, func(o *object) bool { return o.container(buildName).State.Running != nil })
	if err != nil {
		return p.withEnd(err)
	}
	p.cfg.Say("pod %s runs on node %s", p.name, s.Spec.NodeName)
	p.cfg.Say("image %.160s is %s", p.cfg.Spec.Image, p.Image())
	if err := p.startLink(ctx); err != nil {
		return p.withEnd(err)
	}
	return p.withEnd(p.awaitServices(ctx))
}

// startLink makes the build's first link.
func (p *Pod) startLink(ctx context.Context) error {
	limit := p.cfg.ReadyTimeout
	timed, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done within %v", limit))
	defer cancel()
	l, err := p.reconnect(timed)
	switch {
	case err == nil:
		if p.first != nil { // it was cut
			p.first.Release()
		}
		p.first = l
		return nil
	case timed.Err() != nil && ctx.Err() == nil:
		return &podError{pod: p.name, why: "the step runner could not be reached: " + err.Error(), another: true}
	default:
		return err
	}
}

// deadline is how long the cluster allows the pod to live.
func (p *Pod) deadline() time.Duration {
	return cmp.Or(p.cfg.Timeout, defaultLife) + p.cfg.Linger + p.cfg.StartTimeout + deadlineSlack
}

// create creates the pod. A call whose answer was lost is repeated: the pod's name is unique. So a conflict is about
// the pod of an earlier call, or about the namespace's quota, which other pods change at the same time: then the call
// is repeated, too (https://github.com/kubernetes/kubernetes/issues/67761).
func (p *Pod) create(ctx context.Context) error {
	op := fmt.Sprintf("create a pod in namespace %s", p.cluster.namespace)
	body, err := p.manifest(programFiles(p.cfg.Programs))
	if err != nil {
		return err
	}
	made, conflict := object{}, error(nil)
	passing := func(err error) bool { return isPassing(err) || conflict != nil && errors.Is(err, conflict) }
	err = persist(ctx, passing, func() error {
		// A cancelled call may create the pod nevertheless.
		_, err := p.cluster.call(context.WithoutCancel(ctx), op, http.MethodPost, p.cluster.podPath(""), nil, body, &made)
		if isCode(err, http.StatusConflict) {
			conflict = err
			_, err = p.cluster.call(ctx, op, http.MethodGet, p.cluster.podPath(p.name), nil, nil, &made)
			if isCode(err, http.StatusNotFound) {
				err = conflict
			}
		}
		return err
	})
	if err != nil && isPassing(err) { // the answer of a call that made it may be lost
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endGrace)
		defer cancel()
		return errors.Join(err, p.cluster.deletePod(last, p.name, ""))
	}
	if err != nil {
		return err
	}
	p.uid = made.Metadata.UID
	p.update(&made)
	return nil
}

// await waits until wanted returns true for the pod. It fails as soon as that can no longer happen.
func (p *Pod) await(ctx context.Context, wanted func(*object) bool) (object, error) {
	noNode, shaky := newPatience(p.cfg.Spec.ScheduleTimeout), newPatience(shakyTimeout)
	defer noNode.stop()
	defer shaky.stop()
	for {
		p.mu.Lock()
		seen, changed, blind := p.seen, p.changed, p.blind
		stuck, another := seen.stuck(p.pulls, shaky.over(seen.shaky(p.pulls)))
		p.mu.Unlock()
		if stuck != "" {
			return seen, p.failure(ctx, p.because(stuck, another))
		}
		why := seen.unschedulable()
		if noNode.over(why != "") {
			return seen, p.failure(ctx, p.because(why, false))
		}
		if blind != nil {
			return seen, blind
		}
		if wanted(&seen) {
			return seen, nil
		}
		select {
		case <-changed:
		case <-p.alive.Done():
			return seen, p.failure(ctx, p.endError())
		case <-noNode.timer.C:
		case <-shaky.timer.C:
		case <-ctx.Done():
			return seen, fmt.Errorf("pod %s: %w%s", p.name, context.Cause(ctx), waitText(&seen))
		}
	}
}

// patience is a limit for how long a condition may hold.
type patience struct {
	time  time.Duration
	since time.Time // zero while the condition does not hold
	timer *time.Timer
}

func newPatience(d time.Duration) *patience {
	timer := time.NewTimer(d)
	timer.Stop()
	return &patience{time: d, timer: timer}
}

// over reports whether the condition has held for too long. holds is whether it holds now.
func (w *patience) over(holds bool) bool {
	switch {
	case !holds:
		w.since = time.Time{}
		w.timer.Stop()
	case w.since.IsZero():
		w.since = time.Now()
		w.timer.Reset(w.time)
	}
	return holds && time.Since(w.since) >= w.time
}

func (w *patience) stop() { w.timer.Stop() }

// waitText describes the reasons for which a pod waits.
func waitText(o *object) string {
	var all []string
	for _, s := range slices.Concat(o.Status.InitContainerStatuses, o.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil {
			all = append(all, s.Name+" "+strings.TrimSuffix(w.Reason+": "+w.Message, ": "))
		}
	}
	if why := o.unschedulable(); why != "" {
		all = append(all, why)
	}
	if len(all) == 0 {
		return ""
	}
	return foreignText(" (" + strings.Join(all, "; ") + ")")
}

// podError is the reason why a pod cannot run its build, or can no longer.
type podError struct {
	pod, why string
	// another is true if the fault may be the pod's or its node's, so that another pod may succeed.
	another bool
}

func (e *podError) Error() string { return "pod " + e.pod + ": " + e.why }

// because returns an error about the pod that quotes a text of the cluster.
func (p *Pod) because(why string, another bool) error {
	return &podError{pod: p.name, why: foreignText(why), another: another}
}

// isPodsFault reports whether another pod may succeed where this one failed.
func isPodsFault(err error) bool {
	e, ok := errors.AsType[*podError](err)
	return ok && e.another
}

// failure adds the pod's events to err, the error of a pod that does not start.
func (p *Pod) failure(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endGrace)
	defer cancel()
	if events := p.cluster.events(ctx, p.uid); events != "" {
		err = fmt.Errorf("%w; events: %s", err, events)
	}
	return err
}

// withEnd adds to err the reason why the pod has ended, if it has and err does not have it.
func (p *Pod) withEnd(err error) error {
	end := p.endError()
	if err == nil || end == nil || strings.Contains(err.Error(), end.Error()) {
		return err
	}
	return fmt.Errorf("%w: %w", end, err)
}

// Configure makes the pod the place of a Connector's step runner, which lingers there: it sets Lease, VM, Runner,
// TempDir, Route, Bootstrap, Linger and Reconnect. Close the Connector before the Pod.
func (p *Pod) Configure(cfg *connector.Config) {
	cfg.Lease, cfg.VM, cfg.Linger = p.first, &connector.VM{}, p.cfg.Linger
	cfg.Reconnect = func(ctx context.Context) (connector.Lease, error) {
		// The Connector of a build that runs asks again. When it gives up, it tells why the last call failed.
		limit := min(linkTimeout, p.cfg.Linger/2)
		if _, bounded := ctx.Deadline(); !bounded {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("no link to pod %s within %v", p.name, limit))
			defer cancel()
		}
		l, err := p.reconnect(ctx)
		if err != nil {
			return nil, err
		}
		return l, nil
	}
	cfg.Runner, cfg.TempDir, cfg.Route, cfg.Bootstrap = []string{place.ProgramFile}, place.RunDir, connector.Relay, nil
}

// Name returns the pod's name.
func (p *Pod) Name() string { return p.name }

// Image returns the image's digest as the kubelet reports it, or the image's name.
func (p *Pod) Image() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return foreignText(cmp.Or(p.seen.container(buildName).ImageID, p.cfg.Spec.Image))
}

// Containers implements place.Place, as the kubelet reports them. A pod has no network with a name. A service has no
// ID that stays: its container may start again, and the next manager describes the same job.
func (p *Pod) Containers() map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, id, _ := strings.Cut(foreignText(p.seen.container(buildName).ContainerID), "://")
	return place.Describe(id, "", nil)
}

// Explain implements place.Place. It also tells that the pod is being deleted.
func (p *Pod) Explain(ctx context.Context, err error) error {
	// A pod ends its processes first.
	_, ended := errors.AsType[*connector.ServeError](err)
	if !ended && !mux.IsLost(err) && !errors.Is(err, connector.ErrGone) {
		return err
	}
	timer := time.NewTimer(endGrace)
	defer timer.Stop()
	select {
	case <-p.alive.Done():
		return p.withEnd(err)
	case <-timer.C:
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen.Metadata.DeletionTimestamp != nil { // its containers may take longer to end
		return fmt.Errorf("%w: %w", p.because(p.seen.deletedText(), false), err)
	}
	return err
}

// Note implements place.Place, as far as the kubelet knows.
func (p *Pod) Note(_ context.Context, exitCode int) {
	p.mu.Lock()
	oom := p.seen.container(buildName).State.Terminated.oom()
	p.mu.Unlock()
	switch {
	case exitCode != place.Killed:
	case oom:
		p.cfg.Say("a process was killed: the container ran out of memory%s", place.LimitText(p.cfg.Spec.Memory))
	case p.cfg.Spec.Memory > 0:
		p.cfg.Say("a process was killed; did the container run out of memory%s?", place.LimitText(p.cfg.Spec.Memory))
	}
}

// Close deletes the pod and waits until it is gone. When ctx ends or StopTimeout has passed, it returns an error that
// names the pod; the pod then ends by itself, because no client is attached. If ctx has ended already, Close takes one
// second for that. Idempotent: later calls wait for the first and return its result. Calls that wait on a link return
// an error.
func (p *Pod) Close(ctx context.Context) error {
	if ctx.Err() != nil { // the build is cut short: its job would go on for the linger
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), shortStop)
		defer cancel()
	}
	p.closeOnce.Do(func() {
		ctx, cancel := context.WithTimeout(ctx, p.cfg.StopTimeout)
		defer cancel()
		if p.first != nil {
			p.first.Release()
		}
		if !p.left.Load() {
			p.closeErr = p.remove(ctx)
		}
		p.endLife()
		p.wg.Wait()
	})
	return p.closeErr
}

// remove deletes the pod and waits until it is gone.
func (p *Pod) remove(ctx context.Context) error {
	if p.uid == "" || p.Removed() {
		return nil
	}
	err := persist(ctx, isPassing, func() error { return p.cluster.deletePod(ctx, p.name, p.uid) })
	for err == nil {
		p.mu.Lock()
		changed, gone := p.changed, p.removed
		p.mu.Unlock()
		if gone {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("remove pod %s of namespace %s (else it ends by itself, %v after the build's end): %w", p.name,
			p.cluster.namespace, p.cfg.Linger, err)
	}
	return nil
}

// Removed reports whether the API server has confirmed that the pod no longer exists.
func (p *Pod) Removed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.removed
}

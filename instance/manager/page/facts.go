package page

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/instance/control"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/flight"
	"github.com/stepmux/stepmux/internal/labels"
	"github.com/stepmux/stepmux/internal/likeness"
)

const (
	// maxQueued bounds the builds that wait on a page, maxRows its VMs, and maxBuilds the builds of a VM.
	maxQueued, maxRows, maxBuilds = 100, 500, 50
	// maxRecent bounds the builds that have ended from which pages are made.
	maxRecent = 1000
	// freshTime and recentTime are how long answers of the manager are shared by the readers of pages.
	freshTime, recentTime = time.Second, 2 * time.Second
)

// facts are the manager's answers, which all readers of pages share for a moment. They are safe for concurrent use.
type facts struct {
	manager pb.ManagerClient
	present flight.Flight[present]
	recent  flight.Flight[*pb.ListResponse]
}

// present is the status of the fleet and the queue.
type present struct {
	status control.Status
	queue  *pb.ListResponse
}

// share asks the manager, and gives one answer to all callers that ask during the call or within keep after it.
func share[T any](
	ctx context.Context, f *flight.Flight[T], keep time.Duration, ask func(context.Context) (T, error),
) (T, error) {
	answer, err := f.Do(ctx, func(ctx context.Context) (T, time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		answer, err := ask(ctx)
		return answer, keep, err
	})
	if ctx.Err() != nil {
		err = status.FromContextError(ctx.Err()).Err()
	}
	return answer, err
}

// now returns the status of the fleet and the queue.
func (f *facts) now(ctx context.Context) (control.Status, *pb.ListResponse, error) {
	now, err := share(ctx, &f.present, freshTime, func(ctx context.Context) (p present, err error) {
		if p.status, err = control.Ask(ctx, f.manager); err != nil {
			return p, err
		}
		p.queue, err = f.manager.List(ctx, &pb.ListRequest{Phase: pb.Build_queued, Limit: maxQueued})
		return p, err
	})
	return now.status, now.queue, err
}

// ended returns the builds that have ended last, the latest first.
func (f *facts) ended(ctx context.Context) ([]*pb.Build, error) {
	list, err := share(ctx, &f.recent, recentTime, func(ctx context.Context) (*pb.ListResponse, error) {
		return f.manager.List(ctx, &pb.ListRequest{Phase: pb.Build_ended, Limit: maxRecent})
	})
	return list.GetBuilds(), err
}

// forget has the next reader ask again.
func (f *facts) forget() {
	f.present.Forget()
	f.recent.Forget()
}

// overviewData is the first page.
type overviewData struct {
	Version        string              `json:"version"`
	Since          time.Time           `json:"since"`
	InventoryError string              `json:"inventory_error,omitempty"`
	Slots          control.Slots       `json:"slots"`
	Waiting        int                 `json:"waiting"`
	OldestWait     float64             `json:"oldest_wait_s"`
	States         map[string]int      `json:"vms"`
	Times          []times             `json:"times"`
	Queue          []queued            `json:"queue"` // the oldest
	VMs            []control.VM        `json:"instances"`
	HiddenVMs      int                 `json:"instances_left_out,omitempty"`
	Servers        []control.JobServer `json:"servers,omitempty"`
	Filter         string              `json:"-"`
	Sort           string              `json:"-"`
}

// MoreWait reports whether more builds wait than Queue has.
func (o overviewData) MoreWait() bool { return o.Waiting > len(o.Queue) }

// queued is a build that waits.
type queued struct {
	pb.BuildJSON
	Why string `json:"why"`
}

// times tells how long one part of builds took, in seconds.
type times struct {
	Window string  `json:"window"`
	Part   string  `json:"part"`
	Builds int     `json:"builds"`
	P50    float64 `json:"p50_s"`
	P90    float64 `json:"p90_s"`
	P99    float64 `json:"p99_s"`
}

// overviewOf makes the first page.
func overviewOf(s control.Status, queue *pb.ListResponse, ended []*pb.Build, now time.Time) overviewData {
	o := overviewData{
		Version: s.Version, Since: s.Since, InventoryError: s.Inventory, Waiting: s.Waiting, Slots: s.Slots,
		States: map[string]int{}, VMs: s.Instances, Servers: s.Servers,
	}
	for i := range s.Instances {
		o.States[s.Instances[i].State]++
	}
	for _, b := range queue.GetBuilds() {
		q := queued{BuildJSON: b.JSON()}
		_, q.Why = s.WhyWaits(b.GetLabels())
		if q.Submitted != nil {
			o.OldestWait = max(o.OldestWait, now.Sub(*q.Submitted).Seconds())
		}
		o.Queue = append(o.Queue, q)
	}
	o.Times = append(timesOf("5 minutes", 5*time.Minute, ended, now), timesOf("hour", time.Hour, ended, now)...)
	return o
}

// timesOf returns the times of the builds that got their slot within a window before now.
func timesOf(name string, window time.Duration, builds []*pb.Build, now time.Time) []times {
	var waits, connects, outputs []float64
	for _, b := range builds {
		if b.GetStarted() == nil || now.Sub(b.GetStarted().AsTime()) > window {
			continue
		}
		waits = append(waits, max(b.GetStarted().AsTime().Sub(b.GetSubmitted().AsTime()).Seconds(), 0))
		if b.GetConnect() != nil {
			connects = append(connects, b.GetConnect().AsDuration().Seconds())
		}
		if b.GetFirstOutput() != nil {
			outputs = append(outputs, b.GetFirstOutput().AsDuration().Seconds())
		}
	}
	return []times{
		quantiles(name, "wait", waits), quantiles(name, "connect", connects), quantiles(name, "first_output", outputs),
	}
}

// quantiles returns the quantiles of the times that builds spent in a part.
func quantiles(window, part string, all []float64) times {
	slices.Sort(all)
	return times{window, part, len(all), quantile(all, 0.5), quantile(all, 0.9), quantile(all, 0.99)}
}

// quantile returns the q-quantile of sorted values by the nearest rank.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)]
}

// choose filters and sorts the VMs of the first page.
func (o *overviewData) choose(filter, by string) {
	o.Filter, o.Sort = filter, by
	if filter != "" {
		o.VMs = slices.DeleteFunc(slices.Clone(o.VMs), func(vm control.VM) bool {
			return !strings.Contains(vm.ID, filter) && !strings.Contains(labels.Text(vm.Labels), filter) && vm.State != filter
		})
	}
	o.VMs = slices.SortedFunc(slices.Values(o.VMs), func(a, b control.VM) int {
		switch by {
		case "state":
			return cmp.Or(cmp.Compare(a.State, b.State), cmp.Compare(a.ID, b.ID))
		case "busy":
			return cmp.Or(cmp.Compare(len(b.Builds), len(a.Builds)), cmp.Compare(a.ID, b.ID))
		default:
			return cmp.Compare(a.ID, b.ID)
		}
	})
	if more := len(o.VMs) - maxRows; more > 0 {
		o.VMs, o.HiddenVMs = o.VMs[:maxRows], more
	}
}

// failuresData is the page of the builds that failed among the last ones.
type failuresData struct {
	Of      int            `json:"of"` // builds
	System  []failureGroup `json:"system"`
	Scripts []failureGroup `json:"scripts"`
	Others  []failureGroup `json:"others"` // canceled, or took too long
}

// failureGroup has builds that failed alike.
type failureGroup struct {
	Reason string         `json:"reason"`
	Cause  string         `json:"cause"`
	Count  int            `json:"count"`
	VMs    map[string]int `json:"instances"`
	Builds []pb.BuildJSON `json:"builds"` // the latest
}

const (
	// maxGrouped bounds the builds of a group on the page, and maxCause its text.
	maxGrouped, maxCause = 5, 300
)

func failuresOf(ended []*pb.Build) failuresData {
	groups := map[[2]string]*failureGroup{}
	for _, b := range ended {
		r := b.GetResult()
		if r.GetReason() == "" {
			continue
		}
		key := [2]string{r.GetReason(), causeOf(b)}
		g := groups[key]
		if g == nil {
			g = &failureGroup{Reason: key[0], Cause: key[1], VMs: map[string]int{}}
			groups[key] = g
		}
		g.Count++
		if b.GetInstance() != "" {
			g.VMs[b.GetInstance()]++
		}
		if len(g.Builds) < maxGrouped {
			g.Builds = append(g.Builds, b.JSON())
		}
	}
	f := failuresData{Of: len(ended)}
	for _, g := range slices.SortedFunc(maps.Values(groups), func(a, b *failureGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Cause, b.Cause))
	}) {
		switch g.Reason {
		case pb.ScriptFailure:
			f.Scripts = append(f.Scripts, *g)
		case "job_canceled", "job_execution_timeout":
			f.Others = append(f.Others, *g)
		default:
			f.System = append(f.System, *g)
		}
	}
	return f
}

// causeOf reduces a failure's text to the part that all failures with the same cause share.
func causeOf(b *pb.Build) string {
	r := b.GetResult()
	if r.GetReason() == pb.ScriptFailure && r.GetExitCode() != 0 {
		return fmt.Sprintf("exit code %d", r.GetExitCode())
	}
	return line(likeness.Of(r.GetMessage(), b.GetId(), b.GetInstance()), maxCause)
}

package manager

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager/command"
	"github.com/stepmux/stepmux/instance/manager/natscall"
	"github.com/stepmux/stepmux/internal/labels"
)

const (
	// leaseName begins the names of leases, and leasePrefix their keys in the bucket of the builds.
	leaseName, leasePrefix = "lease-", "lease."
	// maxLease bounds the time of a lease.
	maxLease = 7 * 24 * time.Hour
	// maxLeases bounds the leases, with those that wait for a slot.
	maxLeases = 10_000
	// purgedKeep is how long the mark of a lease that has ended stays in the bucket.
	purgedKeep = time.Minute
	// maxLeaseEnds bounds the leases whose end is remembered.
	maxLeaseEnds = 1000
)

// The ends of leases.
const (
	endReleased = "the lease was released"
	endTime     = "its time has passed"
	endHolder   = "the process that held it has ended"
	endVM       = "the VM has left"
)

var leaseNames = regexp.MustCompile(`^lease-[a-z0-9-]{1,40}$`)

// leaseRecord is a lease in the bucket. Unlike a build's record it has no ID.
type leaseRecord struct {
	Lease    string    `json:"lease"`
	Instance string    `json:"instance"`
	Until    time.Time `json:"until"`
	Manager  string    `json:"manager,omitempty"` // has it, of those that share the state
	// Holder is the process with whose end the lease ends; may be nil.
	Holder *holder `json:"holder,omitempty"`
}

// lease is a slot that a client has, or waits for. One goroutine, Manager.keepLease, ends it in time.
type lease struct {
	name     string
	executor *instance.Executor
	commands *command.Runner // of the executor
	released chan struct{}   // closed when its end begins
	ended    chan struct{}   // closed when it has ended
	once     sync.Once

	mu     sync.Mutex // guards the following
	record *leaseRecord
	kept   bool     // it has a record in the bucket, or may have one
	left   []string // what may be left on the VM, once it has ended
	why    string   // it has ended, or ends
}

// leases are the leases of a manager.
type leases struct {
	mu  sync.Mutex // guards the following
	all map[string]*lease
	// ahead has the places in the queue for a slot as they were at the time.
	ahead map[string]int
	at    time.Time
	// ends are the latest leases that have ended.
	ends []leaseEnd
}

// leaseEnd is why a lease has ended.
type leaseEnd struct{ name, why string }

// errLeases refuses a lease.
var errLeases = fmt.Errorf("there are %d leases already", maxLeases)

// leaseRequest asks for a lease.
type leaseRequest struct {
	name     string // if empty, a new one
	labels   map[string]string
	instance string
	limit    time.Duration // if zero, maxLease
	holder   *holder       // may be nil
	// brief is set for a lease that another manager must not keep: the client is gone with this one.
	brief bool
}

// fits reports whether an instance will do.
func (r *leaseRequest) fits(in instance.Instance) bool {
	return (r.instance == "" || in.ID == r.instance) && instance.HasLabels(in.Labels, r.labels)
}

// check returns an error unless an instance will do now. The queue would wait for one to come.
func (r *leaseRequest) check(group *instance.Group) error {
	if r.instance == "" && len(r.labels) == 0 || slices.ContainsFunc(group.Instances(), r.fits) {
		return nil
	}
	if len(r.labels) == 0 {
		return fmt.Errorf("%w %.160q", instance.ErrUnknown, r.instance)
	}
	return fmt.Errorf("%w with the labels %.300q", instance.ErrUnknown, labels.Text(r.labels))
}

// reserve waits for a slot and returns the lease once it is kept. fresh is false if there was one of that name before.
// waits is called with the place in the queue, from time to time. missing is as for Executor.Equip. ctx bounds the wait
// alone.
func (m *Manager) reserve(ctx context.Context, r leaseRequest, waits func(ahead int) error) (
	l *lease, fresh bool, missing string, err error,
) {
	if err := r.check(m.cfg.Group); err != nil && (r.instance != "" || !m.groups.fits(r.labels)) {
		return nil, false, "", err
	}
	if err := m.elsewhere(&r); err != nil {
		return nil, false, "", err
	}
	r.name = cmp.Or(r.name, leaseName+strings.ToLower(rand.Text()))
	l, known, err := m.addLease(r)
	if err != nil || known {
		return l, false, "", err
	}
	if missing, err = m.fillLease(ctx, l, r, waits); err != nil {
		_ = m.release(m.life, l, endReleased) //nolint:contextcheck // whatever became of ctx
		return nil, false, "", err
	}
	return l, true, missing, nil
}

// elsewhere returns an error if other managers have all VMs that will do.
func (m *Manager) elsewhere(r *leaseRequest) error {
	if other := m.fleet.OwnerOf(r.fits); other != "" {
		return fmt.Errorf("%w (manager %s): ask that one", errLeaseElsewhere, other)
	}
	return nil
}

// fillLease waits for the slot of a new lease, and keeps the lease.
func (m *Manager) fillLease(
	ctx context.Context, l *lease, r leaseRequest, waits func(ahead int) error,
) (missing string, err error) {
	err = m.awaitSlot(ctx, l, func(ahead int) error {
		if err := m.elsewhere(&r); err != nil { // it has moved there
			return err
		}
		return waits(ahead)
	})
	if err != nil {
		return "", err
	}
	if missing, err = l.commands.Equip(ctx); err != nil {
		return "", err
	}
	record := &leaseRecord{
		Lease: l.name, Instance: l.executor.Instance(), Holder: r.holder, Manager: m.fleet.ID(),
		Until: time.Now().Add(min(cmp.Or(max(r.limit, 0), maxLease), maxLease)),
	}
	if !r.brief {
		err = m.putLease(ctx, record)
		l.mu.Lock()
		l.kept = !errors.Is(err, jetstream.ErrKeyExists) // another manager's; an answer may have been lost
		l.mu.Unlock()
		if err != nil {
			return "", err
		}
	}
	l.mu.Lock()
	l.record = record
	l.mu.Unlock()
	if !m.keepLease(l, record) { //nolint:contextcheck // its life is the manager's
		m.forgetLease(l)                  //nolint:contextcheck // Shutdown leaves the records of leases
		return "", context.Cause(m.takes) //nolint:contextcheck // the manager's end
	}
	m.cfg.Logger.Info("lease begins", "lease", l.name, "instance", record.Instance)
	return missing, nil
}

// addLease returns a new lease, or the one of that name that has its slot.
func (m *Manager) addLease(r leaseRequest) (l *lease, known bool, err error) {
	if !leaseNames.MatchString(r.name) {
		return nil, false, fmt.Errorf("%w %.80q", errLeaseName, r.name)
	}
	m.leases.mu.Lock()
	defer m.leases.mu.Unlock()
	if l := m.leases.all[r.name]; l != nil {
		if !l.usable() {
			return nil, false, errLeaseWaits
		}
		return l, true, nil
	}
	if len(m.leases.all) >= maxLeases {
		return nil, false, errLeases
	}
	l = m.newLease(r.name, instance.Build{Labels: r.labels, On: r.instance})
	m.leases.all[r.name] = l
	return l, false, nil
}

var (
	errLeaseName = errors.New("a lease is named lease- and 1 to 40 of a-z 0-9 -, not")
	// errLeaseElsewhere refuses a lease that would wait until the other manager gives its VMs up.
	errLeaseElsewhere = errors.New("the VMs that fit are those of another manager of the cluster")

	errLeaseWaits = errors.New("another call waits for this lease, or its end")
)

// leaseParty is that of leases, and of logins, among those that wait for slots: they do not wait behind the whole
// queue.
const leaseParty = "leases"

func (m *Manager) newLease(name string, b instance.Build) *lease {
	none := time.Duration(0)
	b.ID, b.Linger, b.Party = name, &none, leaseParty
	e := m.cfg.Provider.Executor(b)
	return &lease{
		name: name, executor: e, commands: command.On(e), released: make(chan struct{}), ended: make(chan struct{}),
	}
}

// awaitSlot waits for the lease's slot and its connection.
func (m *Manager) awaitSlot(ctx context.Context, l *lease, waits func(ahead int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	//nolint:contextcheck // the manager's end
	defer context.AfterFunc(m.takes, func() { cancel(context.Cause(m.takes)) })()
	prepared := make(chan error, 1)
	go func() { prepared <- l.executor.Prepare(ctx) }() // waited for below
	tick := time.NewTicker(aheadPause)
	defer tick.Stop()
	for {
		select {
		case err := <-prepared:
			return err
		case <-tick.C:
			ahead, waiting := m.aheadOf(l.name)
			if !waiting {
				continue
			}
			if err := waits(ahead); err != nil {
				cancel(err)
				<-prepared //nolint:errcheck // it was canceled for err
				return err
			}
		}
	}
}

// aheadPause is the time between two looks at the queue for a slot.
const aheadPause = 500 * time.Millisecond

// aheadOf returns how many wait for a slot before a lease. All leases that wait share a look at the queue.
func (m *Manager) aheadOf(name string) (ahead int, waiting bool) {
	m.leases.mu.Lock()
	defer m.leases.mu.Unlock()
	if time.Since(m.leases.at) >= aheadPause {
		m.leases.ahead = map[string]int{}
		for i, id := range m.cfg.Group.Waiting() {
			m.leases.ahead[id] = i
		}
		m.leases.at = time.Now()
	}
	ahead, waiting = m.leases.ahead[name]
	return ahead, waiting
}

// keepLease ends a lease in time, or when its holder has ended. It returns false if the manager ends.
func (m *Manager) keepLease(l *lease, record *leaseRecord) bool {
	var gone <-chan struct{}
	stop := func() {}
	if record.Holder != nil {
		gone, stop = record.Holder.watch()
	}
	kept := m.spawn(func() {
		defer stop()
		timer := time.NewTimer(time.Until(record.Until))
		defer timer.Stop()
		why := endTime
		select {
		case <-l.released:
			return
		case <-m.takes.Done():
			return
		case <-gone:
			why = endHolder
		case <-timer.C:
		}
		m.cfg.Logger.Warn("lease is ended", "lease", l.name, "instance", record.Instance, "because", why)
		_ = m.release(m.life, l, why) // logged there
	})
	if !kept {
		stop()
	}
	return kept
}

// findLease returns the lease of a name that has its slot, or nil.
func (m *Manager) findLease(name string) *lease {
	if l := m.leaseOf(name); l != nil && l.usable() {
		return l
	}
	return nil
}

// leaseOf returns the lease of a name that has, or had, its slot. It is nil once the lease's end is complete.
func (m *Manager) leaseOf(name string) *lease {
	m.leases.mu.Lock()
	defer m.leases.mu.Unlock()
	if l := m.leases.all[name]; l != nil && l.begun() {
		return l
	}
	return nil
}

// usable reports whether the lease has its slot, and its end has not begun.
func (l *lease) usable() bool {
	select {
	case <-l.released:
		return false
	default:
		return l.begun()
	}
}

// begun reports whether the lease has, or had, its slot.
func (l *lease) begun() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.record != nil
}

// noLease returns the error about a lease that cannot be used, with the reason if it is remembered.
func (m *Manager) noLease(name string) string {
	why := strings.Join([]string{endReleased, endTime, endHolder}, ", ") + " or " + endVM
	m.leases.mu.Lock()
	defer m.leases.mu.Unlock()
	ends := m.leases.ends
	if l := m.leases.all[name]; l != nil && l.end() != "" {
		ends = append(ends[:len(ends):len(ends)], leaseEnd{name, l.end()})
	}
	for _, end := range slices.Backward(ends) {
		if end.name == name {
			why = end.why
			break
		}
	}
	return fmt.Sprintf("there is no lease %.80q: %s", name, why)
}

// end returns why the lease has ended or ends, or "".
func (l *lease) end() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// release ends a lease: its commands, its slot and its record. The first call does that, and the others wait for it
// until ctx ends. why is the reason for the lease's users.
func (m *Manager) release(ctx context.Context, l *lease, why string) error {
	l.once.Do(func() { //nolint:contextcheck // it is ended whatever becomes of the caller
		l.mu.Lock()
		l.why = why
		l.mu.Unlock()
		close(l.released)
		end := func() {
			defer close(l.ended)
			m.endLease(l, true)
		}
		if !m.spawn(end) {
			end()
		}
	})
	select {
	case <-l.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// endLease ends a lease. If it is to be forgotten, its record goes, too.
func (m *Manager) endLease(l *lease, forget bool) {
	err := l.executor.Cleanup(context.WithoutCancel(m.life)) // it is bounded
	l.mu.Lock()
	if err != nil {
		l.left = append(l.left, err.Error())
		m.cfg.Logger.Warn("the lease's end on the VM failed", "lease", l.name, "instance", l.executor.Instance(),
			"error", err)
	}
	l.mu.Unlock()
	if forget {
		m.forgetLease(l)
	}
	m.leases.mu.Lock()
	defer m.leases.mu.Unlock()
	delete(m.leases.all, l.name)
	if l.begun() {
		m.leases.ends = append(m.leases.ends[max(0, len(m.leases.ends)-maxLeaseEnds+1):], leaseEnd{l.name, l.end()})
	}
}

// forgetLease removes the record of a lease, if it has one. It waits for a NATS cluster that does not answer until the
// manager ends.
func (m *Manager) forgetLease(l *lease) {
	l.mu.Lock()
	kept := l.kept
	l.mu.Unlock()
	if !kept {
		return
	}
	forget := func(ctx context.Context) error {
		return m.store.Builds.Purge(ctx, leasePrefix+l.name, jetstream.PurgeTTL(purgedKeep))
	}
	err := m.store.Persist(m.takes, forget)
	if err != nil && m.takes.Err() != nil {
		ctx, cancel := context.WithTimeout(m.life, m.store.Timeout)
		defer cancel()
		err = forget(ctx)
	}
	if err != nil {
		m.cfg.Logger.Error("cannot forget a lease", "lease", l.name, "error", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = false
}

// putLease keeps a lease. When it returns nil, the record is on disk.
func (m *Manager) putLease(ctx context.Context, record *leaseRecord) error {
	if _, err := m.store.Builds.Create(ctx, leasePrefix+record.Lease, natscall.Encode(record)); err != nil {
		return fmt.Errorf("keep the lease %s: %w", record.Lease, err)
	}
	return nil
}

// keptLeases returns the leases of all managers, by their keys.
func (m *Manager) keptLeases(ctx context.Context) (map[string]*leaseRecord, error) {
	kept, err := natscall.Entries(ctx, m.store.Builds, leasePrefix+"*")
	all := map[string]*leaseRecord{}
	for _, entry := range kept {
		record := &leaseRecord{}
		if err := json.Unmarshal(entry.Value(), record); err != nil {
			return nil, fmt.Errorf("read the leases: %w", err)
		}
		all[entry.Key()] = record
	}
	return all, err
}

// restoreLeases takes the slots of the leases that a manager before has given.
func (m *Manager) restoreLeases(ctx context.Context) error {
	kept, err := m.keptLeases(ctx)
	if err != nil {
		return err
	}
	for key, record := range kept {
		if record.Manager != m.fleet.ID() {
			if time.Now().After(record.Until) { // of a manager that did not come back
				_ = m.store.Builds.Purge(ctx, key, jetstream.PurgeTTL(purgedKeep)) // else the next manager does it
			}
			continue
		}
		m.leases.mu.Lock()
		again := m.leases.all[record.Lease] != nil
		m.leases.mu.Unlock()
		if again { // this is another attempt
			continue
		}
		l := m.newLease(record.Lease, instance.Build{On: record.Instance})
		l.record, l.kept = record, true
		m.leases.mu.Lock()
		m.leases.all[l.name] = l
		m.leases.mu.Unlock()
		if err := l.executor.Occupy(record.Instance); err != nil {
			m.cfg.Logger.Warn("lease is lost", "lease", l.name, "instance", record.Instance, "error", err)
			if err := m.release(ctx, l, endVM); err != nil {
				return err
			}
			continue
		}
		if !m.keepLease(l, record) { //nolint:contextcheck // its life is the manager's
			return context.Cause(m.takes) //nolint:contextcheck // the manager's end
		}
		m.cfg.Logger.Info("lease is kept", "lease", l.name, "instance", record.Instance)
	}
	return nil
}

// leaveLeases ends the commands of all leases. Their records stay, for the next manager, unless instances end with this
// one.
func (m *Manager) leaveLeases() {
	m.leases.mu.Lock()
	all := make([]*lease, 0, len(m.leases.all))
	for _, l := range m.leases.all {
		all = append(all, l)
	}
	m.leases.mu.Unlock()
	for _, l := range all {
		l.once.Do(func() {
			close(l.released)
			m.wg.Go(func() {
				defer close(l.ended)
				m.endLease(l, m.cfg.EndBuilds)
			})
		})
	}
}

package elastic

import (
	"errors"
	"fmt"
	"time"
)

const (
	// DefaultUnhealthyTime is how long a VM may be ill.
	DefaultUnhealthyTime = 10 * time.Minute
	// DefaultIdleTime is how long a VM that is not needed is kept.
	DefaultIdleTime = 5 * time.Minute
	// MaxVMs bounds the VMs of a group.
	MaxVMs = 10_000
	// MaxCapacity bounds the builds of a VM at once.
	MaxCapacity = 1000
	// minAge is the least MaxAge: a VM that is old when it is ready would be replaced again and again.
	minAge = time.Minute
	// maxFailures is how often a VM may fail to become ready.
	maxFailures = 3
	// maxRules and maxPeriods bound a configuration.
	maxRules, maxPeriods = 100, 100
)

// Config is the configuration of a group of VMs. The names are those of GitLab Runner's autoscaler where the meaning is
// the same.
type Config struct {
	// Capacity is how many builds a VM takes at once. If zero, 1.
	Capacity int
	// MaxInstances bounds the VMs, with those that are being made or deleted. Required.
	MaxInstances int
	// MaxUses is how many builds a VM takes in all. If zero, any number.
	MaxUses int
	// MaxAge is the age at which a VM is replaced. If zero, any age. The new VM is made first if MaxInstances allows.
	MaxAge time.Duration
	// UnhealthyTime is how long a VM may be ill before it is deleted, unless it is in use. If zero, DefaultUnhealthyTime.
	UnhealthyTime time.Duration
	// Rate bounds how many VMs are made in a second, on average. If zero, there is no bound. Burst is how many are made
	// at once. If zero, 1.
	Rate  float64
	Burst int
	// Rules are the policies. The last one that matches the time counts. If no rule matches, an idle VM is
	// kept for DefaultIdleTime.
	Rules []Rule
}

// Rule is how many VMs wait for builds at some times.
type Rule struct {
	// Periods are the times, in the form of cron: minute, hour, day of the month, month, day of the week. If empty, the
	// rule always matches.
	Periods []string
	// TimeZone is the IANA name of the time zone of Periods. If empty, the machine's.
	TimeZone string
	// IdleCount is how many slots are kept free.
	IdleCount int
	// IdleTime is how long a VM that is not needed is kept. If zero, DefaultIdleTime.
	IdleTime time.Duration
	// ScaleFactor is how many slots are kept free for each slot in use, at most ScaleFactorLimit slots (if that is zero,
	// any number). The larger one of this and IdleCount counts.
	ScaleFactor      float64
	ScaleFactorLimit int
	// Preemptive says that servers are asked for a job only when a slot is free, not already when one can be made. If
	// nil, it is on if IdleCount is not zero.
	Preemptive *bool
}

// Policy is a Config that was checked. It does not change.
type Policy struct {
	cfg      Config
	rules    []rule
	changing bool // by the time
}

// rule is a compiled Rule.
type rule struct {
	Rule
	periods []period
	zone    *time.Location
}

// New checks and compiles a configuration.
func New(cfg Config) (*Policy, error) {
	if cfg.Capacity == 0 {
		cfg.Capacity = 1
	}
	if cfg.Burst == 0 {
		cfg.Burst = 1
	}
	if cfg.UnhealthyTime == 0 {
		cfg.UnhealthyTime = DefaultUnhealthyTime
	}
	switch {
	case cfg.MaxInstances < 1 || cfg.MaxInstances > MaxVMs:
		return nil, fmt.Errorf("max-instances %d: use 1 to %d", cfg.MaxInstances, MaxVMs)
	case cfg.Capacity < 1 || cfg.Capacity > MaxCapacity:
		return nil, fmt.Errorf("capacity %d: use 1 to %d", cfg.Capacity, MaxCapacity)
	case cfg.MaxUses < 0:
		return nil, fmt.Errorf("max-uses %d: use at least 1, or leave it out for any number", cfg.MaxUses)
	case cfg.MaxAge != 0 && cfg.MaxAge < minAge:
		return nil, fmt.Errorf("max-age %v: use at least %v, and far more than it takes to make a VM", cfg.MaxAge, minAge)
	case cfg.UnhealthyTime < time.Second:
		return nil, fmt.Errorf("unhealthy-time %v: use at least 1s, and more than a VM is out of reach now and then",
			cfg.UnhealthyTime)
	case !(cfg.Rate >= 0 && cfg.Rate <= MaxVMs):
		return nil, fmt.Errorf("throttle: rate %v: use 0 to %d VMs a second", cfg.Rate, MaxVMs)
	case cfg.Burst < 1 || cfg.Burst > MaxVMs:
		return nil, fmt.Errorf("throttle: burst %d: use 1 to %d", cfg.Burst, MaxVMs)
	case len(cfg.Rules) > maxRules:
		return nil, fmt.Errorf("%d policies: use at most %d", len(cfg.Rules), maxRules)
	}
	p := &Policy{cfg: cfg}
	for i, r := range cfg.Rules {
		compiled, err := r.compile(cfg)
		if err != nil {
			return nil, fmt.Errorf("policy %d: %w", i+1, err)
		}
		p.rules = append(p.rules, compiled)
		p.changing = p.changing || len(r.Periods) > 0
	}
	return p, nil
}

func (r Rule) compile(cfg Config) (rule, error) {
	if r.IdleTime == 0 {
		r.IdleTime = DefaultIdleTime
	}
	most := cfg.Capacity * cfg.MaxInstances
	switch {
	case r.IdleCount < 0 || r.IdleCount > most:
		return rule{}, fmt.Errorf("idle-count %d: max-instances VMs have 0 to %d slots", r.IdleCount, most)
	case r.IdleTime < 0:
		return rule{}, fmt.Errorf("idle-time %v is negative", r.IdleTime)
	case !(r.ScaleFactor >= 0 && r.ScaleFactor <= MaxCapacity):
		return rule{}, fmt.Errorf("scale-factor %v: use 0 to %d", r.ScaleFactor, MaxCapacity)
	case r.ScaleFactorLimit < 0:
		return rule{}, fmt.Errorf("scale-factor-limit %d is negative", r.ScaleFactorLimit)
	case r.ScaleFactorLimit > 0 && r.ScaleFactor == 0:
		return rule{}, errors.New("scale-factor-limit needs scale-factor")
	case r.TimeZone != "" && len(r.Periods) == 0:
		return rule{}, errors.New("timezone needs periods")
	case len(r.Periods) > maxPeriods:
		return rule{}, fmt.Errorf("%d periods: use at most %d", len(r.Periods), maxPeriods)
	case r.Preemptive != nil && *r.Preemptive && r.IdleCount == 0:
		return rule{}, errors.New("preemptive needs idle-count: while no slot is free no job is asked for, and without " +
			"jobs no VM is made")
	}
	out := rule{Rule: r, zone: time.Local}
	if r.TimeZone != "" {
		var err error
		if out.zone, err = time.LoadLocation(r.TimeZone); err != nil {
			return rule{}, fmt.Errorf("timezone %.80q: use a name such as Europe/Berlin: %w", r.TimeZone, err)
		}
	}
	for _, text := range r.Periods {
		p, err := parsePeriod(text)
		if err != nil {
			return rule{}, fmt.Errorf("period %.80q: %w", text, err)
		}
		out.periods = append(out.periods, p)
	}
	return out, nil
}

// isPreemptive reports whether jobs are asked for only when a slot is free.
func (r *rule) isPreemptive() bool {
	if r.Preemptive != nil {
		return *r.Preemptive
	}
	return r.IdleCount > 0
}

// idleSlots returns how many slots are kept free while so many are in use.
func (r *rule) idleSlots(used int) int {
	scaled := ceil(r.ScaleFactor * float64(used))
	if r.ScaleFactorLimit > 0 {
		scaled = min(scaled, r.ScaleFactorLimit)
	}
	return max(r.IdleCount, scaled)
}

// ruleAt returns the rule that counts at a time.
func (p *Policy) ruleAt(now time.Time) *rule {
	found := &rule{Rule: Rule{IdleTime: DefaultIdleTime}}
	for i := range p.rules {
		if r := &p.rules[i]; r.matches(now) {
			found = r
		}
	}
	return found
}

func (r *rule) matches(now time.Time) bool {
	if len(r.periods) == 0 {
		return true
	}
	local := now.In(r.zone)
	for i := range r.periods {
		if r.periods[i].matches(local) {
			return true
		}
	}
	return false
}

// AtMost returns the policy with another bound of the VMs.
func (p *Policy) AtMost(vms int) *Policy {
	other := *p
	other.cfg.MaxInstances = vms
	return &other
}

package elastic_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/elastic"
	"github.com/stepmux/stepmux/internal/testing/fleetsim"
)

// randomCase returns a configuration and a load, by a seed.
func randomCase(seed uint64) (cfg elastic.Config, load fleetsim.Load) {
	r := rand.New(rand.NewPCG(seed, 2))
	chance := func(p float64) bool { return r.Float64() < p }
	cfg = elastic.Config{Capacity: 1 + r.IntN(5), MaxInstances: 1 + r.IntN(20)}
	if chance(0.3) {
		cfg.MaxUses = 1 + r.IntN(20)
	}
	if chance(0.3) {
		cfg.MaxAge = time.Duration(10+r.IntN(100)) * time.Minute
	}
	if chance(0.3) {
		cfg.Rate, cfg.Burst = 0.05+r.Float64(), 1+r.IntN(5)
	}
	rule := elastic.Rule{IdleTime: time.Duration(r.IntN(1200)) * time.Second}
	if chance(0.6) {
		rule.IdleCount = r.IntN(cfg.Capacity*cfg.MaxInstances + 1)
	}
	if chance(0.3) {
		rule.ScaleFactor, rule.ScaleFactorLimit = r.Float64(), r.IntN(10)
	}
	cfg.Rules = []elastic.Rule{rule}
	if chance(0.2) {
		cfg.Rules = append(cfg.Rules, elastic.Rule{Periods: []string{"*/20 * * * *"}, TimeZone: "UTC", IdleTime: time.Minute})
	}
	load = fleetsim.Load{
		Make: time.Duration(1+r.IntN(120)) * time.Second, Delete: time.Duration(r.IntN(60)) * time.Second,
		Spread: time.Duration(r.IntN(60)) * time.Second, Until: 48 * time.Hour, OnServer: chance(0.3), Seed: seed,
	}
	if chance(0.4) {
		load.FailMake, load.Dud, load.Lose = r.Float64()*0.5, r.Float64()*0.3, r.Float64()*0.3
	}
	at := time.Duration(0)
	for range r.IntN(300) {
		if chance(0.5) {
			at += time.Duration(r.ExpFloat64() * float64(time.Minute))
		}
		takes := time.Duration(r.ExpFloat64() * float64(5*time.Minute))
		load.Builds = append(load.Builds, fleetsim.Build{At: at, Takes: takes})
	}
	return cfg, load
}

// Whatever the policy, the load and the faults: no VM with builds is deleted, all builds end, there are never more VMs
// than max-instances or than the demand asks for, and in the end there are as many as idle-count says.
func FuzzThePolicyHoldsItsPromisesUnderAnyLoad(f *testing.F) {
	for seed := range uint64(25) {
		f.Add(seed)
	}
	f.Add(uint64(250)) // while an old VM was being deleted, the next one was drained
	f.Fuzz(func(t *testing.T, seed uint64) {
		cfg, load := randomCase(seed)
		got, err := fleetsim.Run(cfg, load)
		require.NoError(t, err)
		require.Empty(t, got.Faults, "%+v", cfg)
		require.Zero(t, got.Left, "%+v\n%+v", cfg, got.Last)
		require.LessOrEqual(t, got.Most, cfg.MaxInstances)
		if cfg.MaxAge > 0 || len(cfg.Rules) > 1 || load.Lose > 0 {
			return // VMs come and go
		}
		idle := cfg.Rules[0].IdleCount
		if got.Last.Missing == "" { // VMs that have few uses left may fill max-instances
			require.GreaterOrEqual(t, got.Free, idle, "%+v\n%+v", cfg, got.Last)
		}
		if cfg.MaxUses == 0 {
			require.Empty(t, got.Last.Missing)
			require.Len(t, got.VMs, (idle+cfg.Capacity-1)/cfg.Capacity, "%+v\n%+v", cfg, got.Last)
		}
		if idle == 0 {
			require.Empty(t, got.VMs)
		}
	})
}

// A burst of 500 builds on an empty group: it is worked off at the speed of all VMs, and then the VMs leave.
func TestABurstIsWorkedOffAtFullSpeed(t *testing.T) {
	cfg := elastic.Config{Capacity: 2, MaxInstances: 20, Rules: []elastic.Rule{{IdleTime: 10 * time.Second}}}
	load := fleetsim.Load{Make: 2 * time.Second, Until: time.Hour}
	for range 500 {
		load.Builds = append(load.Builds, fleetsim.Build{Takes: 5 * time.Second})
	}
	got, err := fleetsim.Run(cfg, load)
	require.NoError(t, err)
	require.Empty(t, got.Faults)
	require.Equal(t, 67*time.Second, got.Makespan, "2 s to make the VMs, 13 rounds of 40 builds")
	require.Equal(t, 20, got.Most)
	require.Equal(t, 20, got.Made)
	require.LessOrEqual(t, got.Empty, got.Makespan+10*time.Second)
}

// Builds that come one by one are spread over the VMs, which then never become idle for long: so the policy drains
// those that are not needed.
func TestALowLoadDoesNotKeepAllVMs(t *testing.T) {
	cfg := elastic.Config{Capacity: 4, MaxInstances: 20, Rules: []elastic.Rule{{IdleTime: 5 * time.Minute}}}
	load := fleetsim.Load{Make: 20 * time.Second, Until: 2 * time.Hour}
	for range 80 {
		load.Builds = append(load.Builds, fleetsim.Build{Takes: time.Minute})
	}
	for i := range 700 {
		load.Builds = append(load.Builds, fleetsim.Build{At: time.Duration(i) * 10 * time.Second, Takes: 30 * time.Second})
	}
	got, err := fleetsim.Run(cfg, load)
	require.NoError(t, err)
	require.Empty(t, got.Faults)
	require.Equal(t, 20, got.Most)
	require.Less(t, got.VMTime, 5*time.Hour, "two VMs for two hours, and twenty for some minutes")
}

// BenchmarkNext is a decision for 1,000 VMs.
func BenchmarkNext(b *testing.B) {
	p, err := elastic.New(elastic.Config{
		Capacity: 2, MaxInstances: 2000, MaxAge: 24 * time.Hour, Rules: []elastic.Rule{{IdleCount: 50}},
	})
	require.NoError(b, err)
	s := elastic.State{VMs: vms(1000), Waiting: 20}
	for i := range s.VMs {
		s.VMs[i].Used = i % 3
	}
	b.ReportAllocs()
	for b.Loop() {
		p.Next(s, now)
	}
}

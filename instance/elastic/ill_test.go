package elastic_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/elastic"
)

func illFor(d time.Duration) func(*elastic.VM) {
	return func(vm *elastic.VM) { vm.Ill, vm.Closed = now.Add(-d), true }
}

func TestAVMThatIsIllIsReplacedAfterItsTime(t *testing.T) {
	p := policy(t, elastic.Config{MaxInstances: 3, UnhealthyTime: 5 * time.Minute})
	s := elastic.State{Waiting: 1, VMs: vms(1, illFor(4*time.Minute))}
	d := p.Next(s, now)
	require.Equal(t, 1, d.Create, "its slots do not count")
	require.Equal(t, now.Add(time.Minute), d.Wake)
	carryOut(&s, d)
	require.Len(t, s.VMs, 1)
	require.Equal(t, "takes no builds", d.Notes["vm-1"])

	d = p.Next(s, now.Add(time.Minute))
	require.Equal(t, []string{"vm-1"}, d.Drain)
	require.Equal(t, "has been ill for 5m0s", d.Notes["vm-1"])
	carryOut(&s, d)
	s.VMs[0].Closed = false // as the scaler tells it: it is drained
	d = p.Next(s, now.Add(time.Minute))
	require.Equal(t, []string{"vm-1"}, d.Delete)
}

func TestAVMThatIsIllAndInUseOrHeldOrProtectedStays(t *testing.T) {
	for name, change := range map[string]func(*elastic.VM){
		"used":      used(1),
		"held":      func(vm *elastic.VM) { vm.Held = true },
		"protected": func(vm *elastic.VM) { vm.Protected = true },
	} {
		d := policy(t, elastic.Config{MaxInstances: 3}).Next(elastic.State{VMs: vms(1, illFor(time.Hour), change)}, now)
		require.Empty(t, d.Drain, name)
		require.Empty(t, d.Delete, name)
	}
}

// A manager whose network is away finds all its VMs ill.
func TestIfAllVMsAreIllOneLeavesAtATime(t *testing.T) {
	s := elastic.State{Waiting: 9, VMs: vms(3, illFor(time.Hour))}
	s.VMs[1].Ill = now.Add(-2 * time.Hour)
	p := policy(t, elastic.Config{MaxInstances: 3})
	d := p.Next(s, now)
	require.Equal(t, []string{"vm-2"}, d.Drain)
	carryOut(&s, d)
	d = p.Next(s, now)
	require.Empty(t, d.Drain)
	require.Equal(t, []string{"vm-2"}, d.Delete)
	s.VMs[1].Phase = elastic.Deleting
	d = p.Next(s, now)
	require.Empty(t, d.Drain)
	require.Empty(t, d.Delete)
}

func TestAVMThatIsWellAgainTakesBuildsAgain(t *testing.T) {
	s := elastic.State{Waiting: 1, VMs: vms(1, func(vm *elastic.VM) { vm.Draining = true })}
	d := policy(t, elastic.Config{MaxInstances: 3}).Next(s, now)
	require.Equal(t, []string{"vm-1"}, d.Undrain)
	require.Zero(t, d.Create)
}

package control

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance"
)

// Symptom: "slots 3, busy 7, free 0", since the builds of VMs that take none were counted as busy slots.
func TestSlotsAreBusyOrFree(t *testing.T) {
	var s Slots
	s.Add(instance.Ready, 3, 2)
	s.Add(instance.Suspect, 1, 3) // its capacity was lowered
	s.Add(instance.Draining, 4, 4)
	s.Add(instance.Quarantined, 2, 1)
	require.Equal(t, Slots{Total: 4, Busy: 3, Free: 1, Outside: 7}, s)
}

func TestWhyABuildWaits(t *testing.T) {
	vm := func(state string, builds, capacity int, label string) VM {
		return VM{
			ID: state, State: state, Capacity: capacity, Builds: make([]Build, builds),
			Labels: map[string]string{"os": label},
		}
	}
	linux := map[string]string{"os": "linux"}
	for want, vms := range map[string][]VM{
		"no VM has the label os=linux": {vm("ready", 0, 1, "bsd")},
		"all slots are taken": {
			vm("ready", 2, 2, "linux"), vm("ready", 0, 2, "bsd"), vm("aside", 0, 2, "linux"),
		},
		"the build is about to start, or others are ahead": {vm("suspect", 0, 2, "linux")},
		"no VM takes builds: 1 aside, 2 draining": {
			vm("draining", 1, 2, "linux"), vm("aside", 0, 2, "linux"), vm("draining", 0, 1, "linux"),
		},
	} {
		_, text := (&Status{Instances: vms}).WhyWaits(linux)
		require.Equal(t, want, text)
	}
	_, text := (&Status{}).WhyWaits(nil)
	require.Equal(t, "there is no VM", text)
}

func TestAGroupSaysWhyABuildWaitsAndHowItStands(t *testing.T) {
	g := VMGroup{
		Name: "small", Labels: map[string]string{"size": "s"}, Scales: true, Ready: 1, Making: 2, Leaving: 1, Max: 4,
		Wanted:  9,
		Missing: "max-instances 4 is reached",
	}
	s := Status{
		Groups:    []VMGroup{g},
		Instances: []VM{{ID: "a", Labels: g.Labels, State: string(instance.Ready), Capacity: 1, Builds: make([]Build, 1)}},
	}
	why := func(labels map[string]string) string {
		cause, text := s.WhyWaits(labels)
		return cause + ": " + text
	}
	require.Equal(t, "make: 2 VMs of the group small being made", why(g.Labels))
	s.Groups[0].Making = 0
	require.Equal(t, "make: group small: max-instances 4 is reached", why(nil))
	s.Groups[0].Error = "quota"
	require.Equal(t, "make: group small: max-instances 4 is reached: quota", why(nil))
	s.Groups[0].Missing = ""
	require.Equal(t, "make: the group small is about to make a VM", why(nil))
	require.Equal(t, "no_vm: no VM has the label size=l", why(map[string]string{"size": "l"}))
	s.Groups[0].Scales = false
	require.Equal(t, "full: all slots are taken", why(nil))
	require.Equal(t, "group small: another manager scales it", s.Groups[0].text())
	require.Equal(t, "group small: 1 ready, 2 being made, 1 leaving of at most 4 VMs; 9 slots wanted: "+
		"max-instances 4 is reached", g.text())
}

package control

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance"
)

func TestExplainSaysWhyVMsAreThereAndBuildsWait(t *testing.T) {
	now := time.Now()
	linux := map[string]string{"os": "linux"}
	s := &Status{
		Groups: []VMGroup{{
			Name: "small", Labels: linux, Scales: true, Ready: 1, Leaving: 1, Max: 2, Wanted: 4, Waiting: 3,
			Missing: "max-instances 2 is reached", Error: "quota",
		}},
		Instances: []VM{
			{ID: "fixed", State: string(instance.Ready), Capacity: 4},
			{
				ID: "vm-1", State: string(instance.Ready), Capacity: 1, Labels: linux, Group: "small", Note: "is in use",
				Builds: []Build{{ID: "7-a", Since: now.Add(-time.Minute)}},
			},
			{
				ID: "vm-2", State: string(instance.Draining), Capacity: 1, Labels: linux, Group: "small",
				Reason: "is not needed\x1b[2J",
			},
		},
	}
	explain := func(about string) (string, error) {
		var b strings.Builder
		err := s.Explain(&b, about, now)
		return b.String(), err
	}
	text, err := explain("")
	require.NoError(t, err)
	require.Equal(t, `group small: 1 ready, 1 leaving of at most 2 VMs; 4 slots wanted: max-instances 2 is reached
  3 builds that its VMs would do for without a slot
  the last error of its source: quota
vm-1: ready, 1 of 1 slot in use, group small: is in use
  build 7-a, for 1m0s
vm-2: draining, 0 of 1 slot in use, group small: is not needed?[2J
`, text)
	labelled, err := explain("os=linux")
	require.NoError(t, err)
	require.Equal(t, text+"the next build with this label: group small: max-instances 2 is reached: quota\n", labelled)
	text, err = explain("fixed")
	require.NoError(t, err)
	require.Equal(t, "fixed: ready, 0 of 4 slots in use\n", text)
	_, err = explain("vm-3")
	require.EqualError(t, err, `there is no VM "vm-3"; for the VMs with a label write it as name=value`)
	_, err = explain("os=plan9")
	require.EqualError(t, err, "no VM has the label os=plan9, and none with it can be made")
	s = &Status{}
	text, err = explain("")
	require.NoError(t, err)
	require.Contains(t, text, "no VMs come and go here")
}

package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

func TestADaemonsSocketThatWeMayNotOpenNamesItsGroup(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may open all sockets")
	}
	socket := filepath.Join(sshtest.SocketDir(t), "docker.sock")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	require.NoError(t, os.Chmod(socket, 0))
	require.ErrorContains(t, checkSocket(socket), "permission denied (its group may open it: "+groupOf(socket)+"; ")
	require.NotEqual(t, "unknown", groupOf(socket))
}

// Symptom: a template with imagePullPolicy Always, by which jobs cannot use what other builds have pulled, had no
// effect, and neither had the cluster's default for images with the tag latest.
func TestAPodPullsAsItsTemplateOrTheClusterSays(t *testing.T) {
	for _, want := range []string{"", "always"} {
		var f imageFlags
		fl := pflag.NewFlagSet("run", pflag.ContinueOnError)
		f.register(fl)
		args := []string{"--image", "a"}
		if want != "" {
			args = append(args, "--pull", want)
		}
		require.NoError(t, fl.Parse(args))
		require.NoError(t, f.check(false))
		spec, err := f.container(nil)
		require.NoError(t, err)
		pod, err := new(podFlags).pod(spec)
		require.NoError(t, err)
		require.EqualValues(t, want, pod.Common().Pull)
	}
}

// There were two families of flags with other names, forms and places for the same limits.
func TestOneFamilyOfFlagsLimitsBuildsEverywhere(t *testing.T) {
	args := []string{"--build-memory", "1.5g", "--build-pids", "64", "--build-cpus", "1.1"}
	var onVM vmFlags
	fl := pflag.NewFlagSet("run", pflag.ContinueOnError)
	onVM.registerOptions(fl)
	require.NoError(t, fl.Parse(args))
	require.Equal(t, vmconfig.Limits{Memory: 3 << 29, PIDs: 64, CPUs: 1.1}, onVM.vmOptions.Limits)

	var local localContainer
	fl = pflag.NewFlagSet("local", pflag.ContinueOnError)
	local.register(fl)
	require.NoError(t, fl.Parse(append(args, "--image", "a")))
	require.NoError(t, local.check(false))
	spec, err := local.container(nil)
	require.NoError(t, err)
	spec.Limit(local.limits)
	require.Equal(t, place.Spec{Image: "a", Memory: 3 << 29, Pids: 64, NanoCPUs: 11e8}, spec.Spec)
	require.Equal(t, place.Spec{Memory: 3 << 29, Pids: 64, NanoCPUs: 11e8}, func() (s place.Spec) {
		s.Limit(onVM.vmOptions.Limits)
		return s
	}())

	// The old names are read, and hidden.
	var old imageFlags
	fl = pflag.NewFlagSet("run", pflag.ContinueOnError)
	old.register(fl)
	require.NoError(t, fl.Parse([]string{"--image", "a", "--memory", "1.5g", "--pids-limit", "64", "--cpus", "1.1"}))
	require.NoError(t, old.check(false))
	require.Equal(t, spec.Spec, old.spec.Spec)
	for _, l := range oldLimits {
		require.True(t, fl.Lookup(l.old).Hidden, l.old)
	}
}

package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
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

//go:build gitea || gitlab

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// serversRunner is a manager that is a runner of servers.
type serversRunner struct {
	*managerProcess
	dir string
}

// serveInventory starts a manager with lines of its configuration, for the VMs of a file.
func serveInventory(t *testing.T, dir, inventory, config string) *serversRunner {
	t.Helper()
	file := filepath.Join(dir, "manager.yml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	m := &serversRunner{dir: dir, managerProcess: &managerProcess{
		t: t, socket: filepath.Join(sshtest.SocketDir(t), "m.sock"), patience: bound,
	}}
	m.args = []string{
		"manager", "--config", file, "--state", filepath.Join(dir, "state"), "--inventory", inventory,
		"--socket", m.socket, "--log-level", "info",
	}
	t.Cleanup(func() {
		m.kill()
		if t.Failed() {
			t.Logf("the log of the manager:\n%s", lastOf(&m.stderr))
		}
	})
	m.start()
	return m
}

// pssOf returns the proportional set size of a process, in bytes.
func pssOf(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0 // it has ended
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			require.NoError(t, err)
			return kib << 10
		}
	}
	return 0
}

// median returns the median of times.
func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

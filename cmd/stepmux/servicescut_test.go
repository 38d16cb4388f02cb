package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/testing/faultconn"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// The link to the VM is cut in the middle of an upload, and again in the middle of a download. The client's calls fail,
// and it tries again at the same port once the build is linked again.
//
//stepmux:faults users | The link to a VM breaks while an action uploads or downloads an artifact: that goes on
func TestTransfersOfActionsOutliveACutLink(t *testing.T) {
	t.Parallel()
	const size, bandwidth = 16_000_000, 16 << 20
	for by, args := range map[string][]string{"run": {"run", "--linger", "2m"}, "submit": {"submit", "--wait"}} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			project, dir := clientsProject(t, size), t.TempDir()
			vm := sshtest.OpenSSH(t)
			proxy := sshtest.ProxyOver(t, vm.Addr, faultconn.Config{Bandwidth: bandwidth})
			remote := sshtest.SocketDir(t)
			inventory := filepath.Join(dir, "fleet.yml")
			require.NoError(t, os.WriteFile(inventory, fmt.Appendf(nil, "instances:\n  - {id: vm, address: %q, user: %s, "+
				"key: %s, runner: %s, temp_dir: %s, host_keys: [%q]}\n", proxy.Addr(), vm.User, vm.IdentityFile,
				runnertest.Command(t)[0], remote, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(vm.HostKey)))), 0o600))

			kept := "/stepmux-services-" // where the services put an upload
			if by == "run" {
				args = append(args, "--inventory", inventory)
			} else {
				state := filepath.Join(dir, "state")
				m := &managerProcess{t: t, socket: filepath.Join(sshtest.SocketDir(t), "m.sock"), patience: bound}
				m.args = []string{"manager", "--state", state, "--inventory", inventory, "--socket", m.socket}
				m.start()
				t.Cleanup(m.kill)
				kept, args = "/state/uploads/", append(args, "--manager", m.socket)
			}
			cmd := exec.Command(runnertest.Manager(t), append(args, ".github/workflows/w.yml")...)
			cmd.Dir, cmd.Env = project, append(os.Environ(), "TMPDIR="+dir)
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &said, &said
			require.NoError(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			// cut cuts the link once a part of the bytes is in files below a directory whose paths have a part.
			cut := func(dir, part string) {
				t.Helper()
				tick := time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for until := time.Now().Add(bound); ; {
					if got := bytesBelow(dir, part); got > size/5 {
						require.Less(t, got, int64(size), "it is complete")
						proxy.Cut()
						return
					}
					select {
					case err := <-ended:
						require.FailNow(t, "it has ended", "%v: %s", err, &said)
					case <-tick.C:
						require.True(t, time.Now().Before(until), "nothing is transferred")
					}
				}
			}
			cut(dir, kept)
			cut(remote, "/down-a/")
			err := <-ended
			require.NoError(t, err, said.String())
			require.Equal(t, 2, strings.Count(said.String(), "the connection to the VM is back after"), said.String())
			require.Contains(t, said.String(), "uploaded a true\n")
			require.Contains(t, said.String(), "downloaded a true\n")
		})
	}
}

// bytesBelow returns the size of the files below a directory whose paths have a part. Some may go at any time.
func bytesBelow(dir, part string) (size int64) {
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(path, part) {
			if info, err := d.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil
	})
	return size
}

//go:build programs

package instance_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// largePrograms need setuid programs or services of the machine. They work at off. With isolation they end with the
// error that docs/security.md names.
var largePrograms = []struct {
	name          string
	parts         []string
	off, isolated string
}{
	{
		"rootless podman",
		[]string{"/usr/bin/podman", "/usr/bin/newuidmap"},
		`podman unshare true`,
		`! podman unshare true 2>said; grep 'cannot setresgid: Invalid argument' said`,
	},
	{
		"FUSE",
		[]string{"/usr/bin/sshfs", "/usr/bin/fusermount3", "/usr/lib/openssh/sftp-server", "/dev/fuse"},
		sshfs + `$mount; [ -s mnt/a ]; fusermount3 -u mnt`,
		sshfs + `! $mount 2>said; cat said; grep fusermount3: said; [ ! -e mnt/a ]
			unshare -rm sh -ec "$mount; [ -s mnt/a ]"`,
	},
	{
		"the user's manager of services",
		[]string{"/usr/bin/systemd-run", "/usr/bin/systemctl"},
		bus + `systemctl --user show-environment >/dev/null || { echo "no systemd --user runs for this user"; exit 1; }
			systemd-run --user --wait --quiet touch $PWD/ran; [ -e ran ]`,
		bus + `! systemctl --user status 2>said; grep 'Failed to connect to bus' said
			! systemd-run --user --wait touch $PWD/ran 2>said; grep 'Failed to connect to bus' said`,
	},
}

const (
	sshfs = `[ -w /dev/fuse ] || { echo "this user cannot open /dev/fuse"; exit 1; }
		printf '#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n' >sftp; chmod 700 sftp; mkdir dir mnt; echo a >dir/a
		mount="sshfs -o ssh_command=$PWD/sftp host:$PWD/dir mnt"
		`
	bus = `export XDG_RUNTIME_DIR=/run/user/$(id -u)
		`
)

func TestLargeProgramsWithIsolation(t *testing.T) {
	for _, p := range largePrograms {
		t.Run(p.name, func(t *testing.T) {
			for _, part := range p.parts {
				sshtest.RequirePart(t, p.name, part)
			}
			for level, text := range map[vmconfig.Level]string{
				vmconfig.Off:       p.off,
				vmconfig.Processes: needsIsolation + "\n" + p.isolated, vmconfig.Private: needsIsolation + "\n" + p.isolated,
			} {
				t.Run(level.String(), func(t *testing.T) {
					s := newSite(t, level, connector.Relay)
					out, err := s.run(t, "b1", "set -e\n"+text, nil)
					require.NoError(t, err, "%s", out)
				})
			}
		})
	}
}

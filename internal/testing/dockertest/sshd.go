package dockertest

import (
	"archive/tar"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// LoadSSHD makes an image with the files of Image, this machine's sshd, a user ci, and the script start, which it runs.
func (d *Daemon) LoadSSHD(t testing.TB, ref, start string) {
	t.Helper()
	const sshd, keygen = "/usr/sbin/sshd", "/usr/bin/ssh-keygen"
	sshtest.RequirePart(t, "openssh-server", sshd)
	script, err := os.ReadFile(start)
	require.NoError(t, err)
	programs := map[string]string{"usr/sbin/sshd": sshd, "usr/bin/ssh-keygen": keygen}
	for _, part := range []string{"/usr/lib/openssh/sshd-session", "/usr/lib/openssh/sshd-auth"} { // since version 9.8
		if _, err := os.Stat(part); err == nil {
			programs[part[1:]] = part
		}
	}
	require.NoError(t, d.load(ref, func(archive *tar.Writer) error {
		return errors.Join(
			machineFiles(archive, programs,
				"sshd:x:100:65534::/run/sshd:/bin/false\nci:x:1000:1000::/home/ci:/bin/sh\n"),
			writeFile(archive, tar.Header{Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\nci:x:1000:\n")),
			writeFile(archive, tar.Header{Typeflag: tar.TypeDir, Name: "home/ci/", Mode: 0o755, Uid: 1000, Gid: 1000}, nil),
			writeFile(archive, tar.Header{Name: "etc/ssh/sshd_config", Mode: 0o644}, []byte("UsePAM no\n")),
			writeFile(archive, tar.Header{Name: "start.sh", Mode: 0o755}, script),
		)
	}, "ENV PATH=/usr/sbin:/usr/bin:/bin", `CMD ["/bin/sh", "/start.sh"]`))
}

package embeddedvm

import (
	"net"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

// FuzzTargets holds that a target is refused unless it is an absolute path or a valid port.
func FuzzTargets(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, '/'})
	f.Add(ssh.Marshal(struct {
		Path, Reserved string
		Port           uint32
	}{Path: "/run/socket"}))
	f.Add(ssh.Marshal(struct {
		Host string
		Port uint32
		From string
		At   uint32
	}{"::1", 22, "127.0.0.1", 1}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if network, path, err := unixTarget(data); err == nil {
			require.Equal(t, "unix", network)
			require.True(t, filepath.IsAbs(path))
		}
		if network, address, err := tcpTarget(data); err == nil {
			require.Equal(t, "tcp", network)
			_, number, err := net.SplitHostPort(address)
			if err != nil {
				return // a host with odd brackets: net.Dial refuses it too
			}
			n, err := strconv.Atoi(number)
			require.NoError(t, err)
			require.True(t, n > 0 && n < 65536)
		}
	})
}

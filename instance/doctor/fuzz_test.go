package doctor

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzJudgeServer reads version strings of servers: a warning always advises a change, and garbage gives no warning.
func FuzzJudgeServer(f *testing.F) {
	for _, v := range []string{"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u7", "SSH-2.0-OpenSSH_8.5p1",
		"SSH-2.0-OpenSSH_999.999.999p999", "SSH-2.0-Go", ""} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, identification string) {
		found := judgeServer(identification)
		require.True(t, strings.HasPrefix(found.Detail, identification))
		switch found.Status {
		case Warn:
			require.True(t, strings.HasPrefix(identification, "SSH-2.0-OpenSSH_"))
			require.Contains(t, found.Change, "install")
		case OK:
			require.Empty(t, found.Change)
		default:
			t.Errorf("status %v", found.Status)
		}
	})
}

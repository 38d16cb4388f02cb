package wire

import (
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSocketPathIsBelowTheBase(t *testing.T) {
	for tmp, want := range map[string]string{
		"/tmp":     "/tmp/gitlab-runner-steps/42/step-runner.sock",
		"/tmp/":    "/tmp/gitlab-runner-steps/42/step-runner.sock",
		"/":        "/gitlab-runner-steps/42/step-runner.sock",
		"/var/./x": "/var/x/gitlab-runner-steps/42/step-runner.sock",
	} {
		p, err := SocketPath(tmp, "42")
		require.NoError(t, err, tmp)
		require.Equal(t, want, p)
	}
}

func TestSocketPathRefusesPathsThatNoSocketCanHave(t *testing.T) {
	for name, tc := range map[string]struct {
		tmp  string
		id   BuildID
		want string
	}{
		"a relative directory": {"tmp", "42", "not an absolute path"},
		"no directory":         {"", "42", "not an absolute path"},
		"an invalid build ID":  {"/tmp", "../x", "invalid build ID"},
		"no build ID":          {"/tmp", "", "invalid build ID"},
		"a long directory":     {"/" + strings.Repeat("d", 80), "42", "a unix socket allows 107"},
		"a newline":            {"/t\nmp", "42", "control character"},
	} {
		_, err := SocketPath(tc.tmp, tc.id)
		require.ErrorContains(t, err, tc.want, name)
	}
}

//stepmux:faults vulnerabilities | A path that is too long for a socket is cut | they are refused
//stepmux:with remote/socketdir.TestSockDirStaysWithinTheSocketBoundWhenMovedToTheUsersBase
func TestCheckSocketPathHoldsTheBoundToTheByte(t *testing.T) {
	require.NoError(t, CheckSocketPath("/"+strings.Repeat("x", MaxSocketPath-1)))
	require.ErrorContains(t, CheckSocketPath("/"+strings.Repeat("x", MaxSocketPath)), "108 bytes")
	for _, bad := range []string{"", "x", "./x", "/a/../b", "/a//b", "/a/", "/a/.", "/a\x00b", "/a\x7f"} {
		require.Error(t, CheckSocketPath(bad), "%q", bad)
	}
	require.Less(t, len(CheckSocketPath("/"+strings.Repeat("x", 1<<20)).Error()), 512)
}

func TestSameBuildSocketAllowsOnlyTheMoveToTheUsersBase(t *testing.T) {
	const want = "/tmp/gitlab-runner-steps/42/step-runner.sock"
	for got, same := range map[string]bool{
		want: true,
		"/tmp/gitlab-runner-steps-0/42/step-runner.sock":          true,
		"/tmp/gitlab-runner-steps-1000/42/step-runner.sock":       true,
		"/tmp/gitlab-runner-steps-4294967295/42/step-runner.sock": true,
		"/tmp/gitlab-runner-steps-4294967296/42/step-runner.sock": false,
		"/tmp/gitlab-runner-steps-/42/step-runner.sock":           false,
		"/tmp/gitlab-runner-steps-+1/42/step-runner.sock":         false,
		"/tmp/gitlab-runner-steps-01/42/step-runner.sock":         false,
		"/tmp/gitlab-runner-steps-me/42/step-runner.sock":         false,
		"/tmp/gitlab-runner-steps-1-2/42/step-runner.sock":        false,
		"/tmp/gitlab-runner-steps-1000/43/step-runner.sock":       false,
		"/tmp/gitlab-runner-steps-1000/42/other.sock":             false,
		"/tmp/gitlab-runner-steps-1000/42//step-runner.sock":      false,
		"/tmp/gitlab-runner-steps-1000/x/../42/step-runner.sock":  false,
		"/var/tmp/gitlab-runner-steps-1000/42/step-runner.sock":   false,
		"/tmp/gitlab-runner-steps-1000/more/42/step-runner.sock":  false,
		"tmp/gitlab-runner-steps-1000/42/step-runner.sock":        false,
		"/tmp/gitlab-runner-steps/42/step-runner.sock.other":      false,
		"":  false,
		"/": false,
	} {
		require.Equal(t, same, SameBuildSocket(want, got), got)
	}
	require.False(t, SameBuildSocket("/run/x/42/s.sock", "/run/x-1000/42/s.sock"), "only the base moves")
}

func TestIsSocketBaseAcceptsBothForms(t *testing.T) {
	for name, want := range map[string]bool{
		SocketBase: true, SocketBase + "-0": true, SocketBase + "-1000": true,
		SocketBase + "-": false, SocketBase + "-x": false, SocketBase + "x": false, "tmp": false, "/": false, "": false,
	} {
		require.Equal(t, want, IsSocketBase(name), name)
	}
}

func FuzzSocketPathPassesItsOwnCheck(f *testing.F) {
	f.Add("/tmp", "42")
	f.Add("/a/../..", "x")
	f.Add("/"+strings.Repeat("d", 100), "1")
	f.Fuzz(func(t *testing.T, tmp, id string) {
		p, err := SocketPath(tmp, BuildID(id))
		if err != nil {
			return
		}
		require.NoError(t, CheckSocketPath(p))
		require.Equal(t, SocketName, path.Base(p))
		require.Equal(t, id, path.Base(path.Dir(p)))
		require.Equal(t, SocketBase, path.Base(path.Dir(path.Dir(p))))
		require.True(t, SameBuildSocket(p, p))
	})
}

package connector_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// withoutIsolation is a serve of a version before the flag --isolation.
const withoutIsolation = `case " $* " in *" --isolation "*)
	echo "stepmux: wrong usage: unknown flag: --isolation" >&2; exit 2;;
esac
echo "step-runner is listening on socket $socket" >&2; cat >/dev/null`

func TestALevelThatAnOlderServeDoesNotKnowFailsTheBuildBeforeItStarts(t *testing.T) {
	for _, level := range []vmconfig.Level{vmconfig.Off, vmconfig.Processes, vmconfig.Private} {
		b := newBuild(t, embedded(t), "b1", runner(t, withoutIsolation), func(c *connector.Config) { c.Isolation = level })
		_, err := b.Connect(sshtest.Within(t))
		ended := (*connector.ServeError)(nil)
		require.ErrorAs(t, err, &ended)
		require.Equal(t, 2, ended.ExitCode)
		require.False(t, ended.Ready)
		require.ErrorContains(t, err, "cannot hold the build apart as asked (--isolation, isolation:): install this version")
	}
	b := newBuild(t, embedded(t), "b1", runner(t, withoutIsolation), func(c *connector.Config) { c.Isolation = "auto" })
	_, err := b.Connect(sshtest.Within(t))
	require.NoError(t, err)
}

func TestAGitLabRunnerIsRefusedALevelByName(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		for _, level := range []string{"processes", "private"} {
			b := gitlabBuild(t, s, "b1", func(c *connector.Config) { c.Isolation = vmconfig.Level(level) })
			_, err := b.Connect(sshtest.Within(t))
			require.ErrorContains(t, err,
				"isolation "+level+" needs a stepmux on the VM, whose step runner is step-runner 17.11.0 for ")
			require.ErrorContains(t, err, "install stepmux there, or ask for auto or off")
			b.requireNothingLeft(t)
		}
		for _, level := range []string{"auto", "off"} {
			b := gitlabBuild(t, s, "b1", func(c *connector.Config) { c.Isolation = vmconfig.Level(level) })
			_, err := b.Connect(sshtest.Within(t))
			require.NoError(t, err)
			require.NoError(t, b.Close(sshtest.Within(t)))
		}
	})
}

func TestNewRefusesALevelThatIsNone(t *testing.T) {
	_, err := connector.New(connector.Config{
		Lease: &lease{}, VM: new(connector.VM), BuildID: "b1", Options: vmconfig.Options{Isolation: "some"},
	})
	require.EqualError(t, err, `isolation "some": use auto, off, processes or private`)
}

package connector_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/wire"
)

// tellAll is a stand-in that writes its arguments and its environment to a file.
const tellAll = `{ echo "args: $@"; tr '\0' '\n' <"/proc/$$/environ"; } >"$(dirname "$0")/seen"
[ "$5" != --secret-stdin ] || { read -r line; echo "$line" >"$(dirname "$0")/stdin"; }
echo "step-runner is listening on socket $socket" >&2
` + untilLeash

func TestServeGetsItsSecretOnStdinAndNowhereElse(t *testing.T) {
	onServers(t, func(t *testing.T, s *sshtest.Server) {
		var last string
		for range 2 {
			command := runner(t, tellAll)
			t.Cleanup(func() { // a prestarted one may still write there when the connection has just been closed
				gone := func() bool { return len(remotetest.Processes(command)) == 0 }
				require.Eventually(t, gone, sshtest.Bound, 10*time.Millisecond)
			})
			b := newBuild(t, s, "b1", command, nil)
			_, err := b.Connect(sshtest.Within(t))
			require.NoError(t, err)
			line, err := os.ReadFile(filepath.Join(filepath.Dir(command), "stdin"))
			require.NoError(t, err)
			secret, err := wire.ParseSecret(strings.TrimSuffix(string(line), "\n"))
			require.NoError(t, err)
			seen, err := os.ReadFile(filepath.Join(filepath.Dir(command), "seen"))
			require.NoError(t, err)
			socket := b.tmp + "/gitlab-runner-steps/b1/step-runner.sock"
			require.Contains(t, string(seen), "args: steps serve --socket "+socket+" --secret-stdin\n")
			require.Contains(t, string(seen), "PATH=")
			require.NotContains(t, string(seen), strings.TrimSpace(string(line)))
			md, err := b.Credentials().GetRequestMetadata(t.Context())
			require.NoError(t, err)
			require.Equal(t, map[string]string{"authorization": secret.Authorization()}, md)
			require.Regexp(t, regexp.MustCompile(`^Bearer [A-Za-z0-9_-]{43}$`), md["authorization"])
			require.NotEqual(t, last, md["authorization"], "each has its own")
			last = md["authorization"]
			require.NoError(t, b.Close(sshtest.Within(t)))
			require.NotContains(t, b.log.String(), strings.TrimSpace(string(line)))
		}
	})
}

func TestAnOlderServeIsNamedAsSuch(t *testing.T) {
	for _, words := range []string{"unknown flag: --secret-stdin", "flag provided but not defined: -secret-stdin"} {
		b := newBuild(t, embedded(t), "b1", runner(t, "echo 'Error: "+words+"' >&2; exit 2"), nil)
		_, err := b.Connect(sshtest.Within(t))
		ended := (*connector.ServeError)(nil)
		require.ErrorAs(t, err, &ended)
		require.Equal(t, 2, ended.ExitCode)
		require.ErrorContains(t, err,
			"the step runner does not know --secret-stdin: is it older than this program, or another step runner?")
	}
}

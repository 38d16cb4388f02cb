package connector_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/connector/script"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
)

// Symptom: with tcsh as the login shell, the question for the version and every build by session failed with
// "Unmatched ”'".
//
//stepmux:faults users | Command lines that only POSIX shells read
//stepmux:with instance/doctor.TestDoctorIsUnderstoodByEveryLoginShell
//stepmux:with instance/manager.TestALoginsShellNeedNotBeAPOSIXShell
func TestEveryLoginShellReadsEveryCommandLine(t *testing.T) {
	for _, shell := range sshtest.LoginShells {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			s := sshtest.WithLoginShell(t, shell)
			tmp := filepath.Join(sshtest.SocketDir(t), sshtest.Awkward)
			require.NoError(t, os.Mkdir(tmp, 0o700))
			place := filepath.Join(t.TempDir(), sshtest.Awkward+"\nb")
			require.NoError(t, os.Mkdir(place, 0o700))
			runner := filepath.Join(place, "stepmux")
			require.NoError(t, os.Symlink(runnertest.Command(t)[0], runner))
			for name, change := range map[string]func(*connector.Config){
				"relay":   func(c *connector.Config) { c.Route = connector.Relay },
				"session": func(c *connector.Config) { c.Route = connector.Session },
				"upload":  func(c *connector.Config) { c.Runner, c.Bootstrap = nil, []*program.Binary{carried(t)} },
				"leash":   func(c *connector.Config) { c.Runner, c.Route = runnertest.GitLabRunner(t), connector.Session },
			} {
				t.Run(name, func(t *testing.T) {
					b := newBuild(t, s, "b1", runner, func(c *connector.Config) {
						c.TempDir = tmp
						change(c)
					})
					require.NoError(t, b.runs(t))
					require.Empty(t, b.Left())
				})
			}
			conn := connect(t, s)
			t.Run("end", func(t *testing.T) { requireEnd(t, conn, runner, tmp) })
			t.Run("script", func(t *testing.T) {
				var out strings.Builder
				code, err := script.Run(sshtest.Within(t), conn, script.Script{
					Shell: []string{"sh"}, Text: []byte("echo '" + `a!b\` + "'; exit 3"), Stdout: &out,
				})
				require.NoError(t, err)
				require.Equal(t, 3, code)
				require.Equal(t, `a!b\`+"\n", out.String())
			})
			t.Run("line", func(t *testing.T) {
				var out strings.Builder
				code, err := script.RunCommand(sshtest.Within(t), conn, script.Command{Line: "cat"}, strings.NewReader("in"), &out)
				require.NoError(t, err)
				require.Zero(t, code)
				require.Equal(t, "in", out.String())
			})
			t.Run("directory and variables", func(t *testing.T) {
				text := sshtest.Awkward + "\nb"
				for _, cmd := range []mux.Command{
					{Argv: []string{"sh", "-c", `pwd; printf %s "$A"`}},
					{Line: `sh -c 'pwd; printenv A | head -c -1'`},
				} {
					cmd.Dir, cmd.Env = place, []string{"A=" + text}
					p, err := conn.Start(sshtest.Within(t), cmd)
					require.NoError(t, err)
					out, err := io.ReadAll(p)
					require.NoError(t, err)
					require.Equal(t, place+"\n"+text, string(out))
					require.NoError(t, p.Wait(sshtest.Within(t)))
				}
			})
		})
	}
}

// requireEnd checks that the command that ends the rest of a build is understood.
func requireEnd(t *testing.T, conn *mux.Conn, runner, tmp string) {
	t.Helper()
	p, err := conn.Start(sshtest.Within(t), mux.Command{
		Argv: []string{runner, "steps", "end", "--socket", filepath.Join(tmp, "gitlab-runner-steps/b1/step-runner.sock")},
	})
	require.NoError(t, err)
	out, err := io.ReadAll(p)
	require.NoError(t, err)
	require.NoError(t, p.Wait(sshtest.Within(t)))
	require.Equal(t, "[]\n", string(out))
}

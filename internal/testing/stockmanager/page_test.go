package stockmanager_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

func TestThePageForStockManagersLeadsToTheLogThatItShows(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "gitlab.md"))
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	require.Len(t, blocks, 7, "the page's code blocks: install, --version, config.toml, job, log, custom executor")
	install, shown, job, log := blocks[0][1], blocks[1][1], blocks[3][1], blocks[4][1]

	v := newVM(t, remotetest.ShortTemp(t))
	bin, work := filepath.Dir(v.program), t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(work, "bin"), 0o700))
	for _, name := range []string{"stepmux-vm", "stepmux-fetch"} {
		require.NoError(t, os.Rename(filepath.Join(bin, name), filepath.Join(work, "bin", name)))
	}
	require.NoError(t, os.Remove(filepath.Join(bin, "gitlab-runner")))
	sh := exec.CommandContext(t.Context(), "sh", "-euc", strings.ReplaceAll(install, "/usr/local/bin", bin))
	sh.Dir = work
	out, err := sh.CombinedOutput()
	require.NoError(t, err, "%s", out)

	cached := exec.CommandContext(t.Context(), filepath.Join(bin, "gitlab-runner"), "steps", "cache", "list")
	cached.Env = []string{"HOME=" + work, "PATH=/usr/bin:/bin"}
	out, err = cached.Output()
	require.NoError(t, err, "the program for the network is where the other one looks for it")
	require.JSONEq(t, `{"components":[]}`, string(out))

	out, err = exec.CommandContext(t.Context(), filepath.Join(bin, "gitlab-runner"), "--version").Output()
	require.NoError(t, err)
	_, shown, _ = strings.Cut(shown, "\n") // the command
	value := regexp.MustCompile(`(?m)^([^:]+: +).*$`)
	require.Equal(t, value.ReplaceAllString(shown, "$1"), value.ReplaceAllString(string(out), "$1"))
	require.Equal(t, strings.SplitN(shown, "\n", 2)[0], strings.SplitN(string(out), "\n", 2)[0], "the version")

	var file map[string]struct {
		Run []map[string]any
	}
	require.NoError(t, yaml.Unmarshal([]byte(job), &file))
	steps, err := json.Marshal(file["hello"].Run)
	require.NoError(t, err)
	request := v.job("1", "")
	request.Run = string(steps)
	dir := ""
	request.Serving = func(socket string) { dir = filepath.Dir(socket) }
	result, text := v.run(t, request)
	require.Equal(t, runnerproto.Status_success, result.State, result.Message)
	log = strings.ReplaceAll(log, "hello from ci", "hello from "+v.server.User)
	log = strings.ReplaceAll(log, "/tmp/step-runner.k3Jx8QpZ", dir)
	require.Equal(t, log, text)
}

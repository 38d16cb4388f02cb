package commands_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/artifactstest"
	"github.com/stepmux/stepmux/internal/runnertest"
)

// stages are the stages of a job around its script, as a GitLab manager's shell runs them: cache commands may fail, and
// each command is called by the name gitlab-runner after --version has answered.
const stages = `set -eo pipefail
cd "$PROJECT"
gitlab-runner --version >/dev/null 2>&1
for key in branch fallback; do
  if gitlab-runner cache-extractor --file "$CACHE/$key/cache.zip" --timeout 10 --url "$STORE/$key?$SIGNATURE"; then
    echo "Successfully extracted cache"; break
  else
    echo "Failed to extract cache"
  fi
done
if [ -n "$DEPENDENCY" ]; then
  gitlab-runner artifacts-downloader --url "$CI_SERVER_URL" --token "$CI_JOB_TOKEN" --id "$DEPENDENCY"
fi
mkdir -p deps dist
echo "built in job $CI_JOB_ID" >>dist/log
echo "fetched in job $CI_JOB_ID" >>deps/log
ln -sfn /bin/sh deps/sh
if gitlab-runner cache-archiver --file "$CACHE/branch/cache.zip" --timeout 10 --path deps \
    --url "$STORE/branch?$SIGNATURE" --header "Content-Type: application/octet-stream"; then
  echo "Created cache"
else
  echo "Failed to create cache"
fi
gitlab-runner artifacts-uploader --url "$CI_SERVER_URL" --token "$CI_JOB_TOKEN" --id "$CI_JOB_ID" --path dist/ \
  --exclude 'dist/**/*.tmp' --name build --expire-in '1 week' --artifact-format zip --artifact-type archive
`

func TestJobsHandTheirFilesOnThroughAStockManagersStages(t *testing.T) {
	server := artifactstest.New(t)
	bin := t.TempDir()
	program, err := runnertest.Program()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(program, filepath.Join(bin, "gitlab-runner")))
	job := func(id, dependency string, env ...string) (project, out string) {
		project = t.TempDir()
		cmd := exec.CommandContext(t.Context(), "bash")
		cmd.Stdin = strings.NewReader(stages)
		cmd.Env = append([]string{
			"PATH=" + bin + ":" + os.Getenv("PATH"), "PROJECT=" + project, "CACHE=" + t.TempDir(),
			"STORE=" + server.URL + "/store", "SIGNATURE=" + artifactstest.Signature,
			"CI_SERVER_URL=" + server.URL, "CI_JOB_TOKEN=" + artifactstest.Token,
			"CI_JOB_ID=" + id, "DEPENDENCY=" + dependency, "TMPDIR=" + t.TempDir(),
		}, env...)
		data, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", data)
		for _, secret := range []string{artifactstest.Token, "topsecret"} {
			require.NotContains(t, string(data), secret)
		}
		return project, string(data)
	}

	_, out := job("1", "")
	require.Equal(t, 2, strings.Count(out, "FATAL: there is no cache of this name\nFailed to extract cache\n"), out)
	require.Contains(t, out, "Created cache")
	require.Contains(t, out, "WARNING: 1 symbolic links lead outside of the project's directory, as deps/sh")

	// The link to /bin/sh keeps the cache from the second job, which refuses such links.
	_, out = job("2", "1", "STEPMUX_OUTSIDE_LINKS=false")
	require.Contains(t, out, "the symbolic link leads to /bin/sh, outside of the project's directory")
	require.Contains(t, out, "Failed to extract cache")
	project, out := job("3", "2")
	require.Contains(t, out, "Successfully extracted cache")
	for file, want := range map[string]string{
		"dist/log": "built in job 1\nbuilt in job 2\nbuilt in job 3\n", "deps/log": "fetched in job 2\nfetched in job 3\n",
	} {
		data, err := os.ReadFile(filepath.Join(project, file))
		require.NoError(t, err)
		require.Equal(t, want, string(data))
	}
}

package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Symptom: to make the directories of a job took longer than a trivial job.
func TestAJobThatLeftNothingLeavesItsDirectoryToTheNextOne(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t, Config{Dir: dir})
	job := func(id, text string) (Stat, string) {
		t.Helper()
		stat, _ := run(t, s, script(t, id, text))
		return stat, read(t, follow(t, s, id), Stdout, 0)
	}
	facts := func(id string) []string {
		t.Helper()
		stat, out := job(id, `stat -c '%i %a' . ..; ls -A . ..; cd ..; pwd`)
		require.Equal(t, Succeeded, stat.State, stat.Message)
		return strings.Fields(out)
	}
	first, second := facts("1"), facts("2")
	require.Equal(t, []string{"700", ".:", "..:", "script", "work"}, first[3:8])
	last := len(first) - 1
	require.Equal(t, first[:last], second[:last])
	require.NotEqual(t, first[last], second[last])

	for _, harm := range []string{
		"echo text >file", "chmod 755 .", "chmod g+s .", "echo text >../file", "cd ..; rmdir work; ln -s /tmp work",
		"cd ..; mv work gone; mkdir -m 777 work", "cd ../..; mv $OLDPWD/.. aside; mkdir ${OLDPWD%/work}",
		"setfacl -m u:nobody:rwx . || chmod 711 .", "rmdir ../work",
	} {
		_, _ = job(harm, harm)
		left, err := filepath.Glob(filepath.Join(dir, "kept/*/*"))
		require.NoError(t, err)
		require.Empty(t, left, harm)
		stat, out := job("after "+harm, `stat -c '%F %a' .; ls -A; rmdir $PWD`) // so the next one has new ones
		require.Equal(t, Succeeded, stat.State, harm+": "+stat.Message)
		require.Equal(t, "directory 700\n", out, harm)
	}
	require.NoError(t, s.Close())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

package remote

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

const scriptKey = "0123456789abcdef0123456789abcdef"

// script runs Script with stdin, which ends unless hold is set. It returns the script's output, its end and the exit
// status.
func script(ctx context.Context, t *testing.T, cfg ScriptConfig, stdin string, hold bool) (string, wire.End, int) {
	t.Helper()
	return scriptBeside(ctx, t, cfg, stdin, hold, func(*os.File, string) {})
}

// scriptBeside is script beside a function that gets the end of stdin which is written to, and the name of the file
// that has the output.
func scriptBeside(
	ctx context.Context, t *testing.T, cfg ScriptConfig, stdin string, hold bool, beside func(feed *os.File, out string),
) (string, wire.End, int) {
	t.Helper()
	cfg.TempDir = remotetest.ShortTemp(t)
	t.Setenv("HOME", t.TempDir()) // isolation makes files there
	in, feed, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	defer feed.Close()
	_, err = feed.WriteString(stdin)
	require.NoError(t, err)
	if !hold {
		feed.Close()
	}
	out, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer out.Close()
	var wg sync.WaitGroup
	wg.Go(func() { beside(feed, out.Name()) })
	status, err := Script(ctx, in, out, out, cfg)
	wg.Wait()
	require.NoError(t, err)
	_, err = out.Seek(0, io.SeekStart)
	require.NoError(t, err)
	text, err := io.ReadAll(out)
	require.NoError(t, err)
	scan := wire.NewEndScanner(scriptKey)
	said := string(scan.Scan(text))
	end, ok := scan.End()
	require.True(t, ok, "%q", text)
	require.Equal(t, 2, strings.Count(string(text), scriptKey), "on stdout and on stderr")
	for _, base := range remotetest.Names(t, cfg.TempDir) {
		require.Empty(t, remotetest.Names(t, filepath.Join(cfg.TempDir, base)), "it left a directory")
	}
	return said, end, status
}

func TestScriptRunsAndReportsItsEnd(t *testing.T) {
	for _, test := range []struct {
		shell  []string
		text   string
		said   string
		end    wire.End
		status int
	}{
		{[]string{"sh"}, "echo hi; exit 7", "hi\n", wire.End{Code: 7}, 7},
		{[]string{"sh"}, "kill -KILL $$", "", wire.End{Code: 137}, 137},
		{[]string{"sh", "-c", "exit 127"}, "", "", wire.End{Code: 127}, 127},
		{[]string{"sh"}, "exit 127", "", wire.End{Code: 127}, 127},
	} {
		said, end, status := script(
			t.Context(),
			t,
			ScriptConfig{Shell: test.shell, Size: int64(len(test.text))},
			scriptKey+"\n"+test.text,
			true,
		)
		require.Equal(t, test.said, said)
		require.Equal(t, test.end, end)
		require.Equal(t, test.status, status)
	}
}

// Symptom: without isolation, a job could find the key in the memory of its own or of another script, and write the end
// of that script itself: a success.
func TestScriptHidesItsKeyFromJobs(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root can look into every process")
	}
	text := `p=$(awk '{print $4}' /proc/$PPID/stat); (exec 3</proc/$p/mem) 2>/dev/null || echo closed`
	cfg := ScriptConfig{Shell: []string{"sh"}, Size: int64(len(text)), Options: vmconfig.Options{Isolation: vmconfig.Off}}
	said, end, _ := script(t.Context(), t, cfg, scriptKey+"\n"+text, true)
	require.Equal(t, wire.End{}, end)
	require.Equal(t, "closed\n", said)
}

func TestScriptHasTheIsolationThatWasAskedFor(t *testing.T) {
	text := "echo $$; echo x >/tmp/stepmux-script-test && cat /tmp/stepmux-script-test"
	cfg := ScriptConfig{
		Shell: []string{"sh"}, Size: int64(len(text)), Options: vmconfig.Options{Isolation: vmconfig.Processes},
	}
	said, end, _ := script(t.Context(), t, cfg, scriptKey+"\n"+text, true)
	if end.Stage == "machine" && strings.Contains(end.Text, "isolation processes is not available") {
		t.Skip("part missing: " + end.Text)
	}
	require.Equal(t, wire.End{}, end)
	pid, rest, _ := strings.Cut(said, "\n")
	require.Equal(t, "x\n", rest)
	require.Less(t, len(pid), 4, "it has a namespace of its own")
	require.NoFileExists(t, "/tmp/stepmux-script-test")
}

// A home in /tmp is shown again, and the directories of all builds may be in it.
func TestScriptSeesItsOwnDirectoryAloneWhereTheHomeHasThemAll(t *testing.T) {
	home := remotetest.ShortTemp(t)
	neighbour := filepath.Join(home, wire.SocketBase, "neighbour")
	require.NoError(t, os.MkdirAll(neighbour, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(home, "tool"), nil, 0o700))
	text := "cd ~; ls; ls " + wire.SocketBase + " | grep -c script-; ls " + wire.SocketBase + " | wc -l"
	in, feed, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	defer feed.Close()
	_, err = feed.WriteString(scriptKey + "\n" + text)
	require.NoError(t, err)
	out, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer out.Close()
	t.Setenv("HOME", home)
	cfg := ScriptConfig{
		Shell: []string{"sh"}, Size: int64(len(text)),
		Options: vmconfig.Options{Isolation: vmconfig.Processes, TempDir: home},
	}
	_, err = Script(t.Context(), in, out, out, cfg)
	require.NoError(t, err)
	said, err := os.ReadFile(out.Name())
	require.NoError(t, err)
	if strings.Contains(string(said), "isolation processes is not available") {
		t.Skip("part missing: " + string(said))
	}
	said, _, _ = bytes.Cut(said, []byte("\x1e"))
	require.Equal(t, wire.SocketBase+"\ntool\n1\n1\n", string(said))
	require.DirExists(t, neighbour)
}

func TestScriptThatIsCutOffDoesNotRun(t *testing.T) {
	said, end, status := script(
		t.Context(),
		t,
		ScriptConfig{Shell: []string{"sh"}, Size: 100},
		scriptKey+"\necho run\n",
		false,
	)
	require.Empty(t, said)
	require.Equal(t, "truncated", end.Stage)
	require.Contains(t, end.Text, "9 of 100 bytes")
	require.Equal(t, scriptExit, status)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := ScriptConfig{Shell: []string{"sh"}, Size: 100}
	_, end, _ = scriptBeside(ctx, t, cfg, scriptKey+"\necho run\n", true, func(feed *os.File, _ string) {
		defer cancel()
		assert.Eventually(t, func() bool { return unread(feed) == 0 }, time.Minute, time.Millisecond)
	})
	require.Equal(t, "truncated", end.Stage, "it waits no longer than it may")
}

// unread returns how many bytes of a pipe nobody has read, -1 if that cannot be told.
func unread(pipe *os.File) (n int) {
	rc, err := pipe.SyscallConn()
	if err != nil {
		return -1
	}
	ctlErr := rc.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if err != nil || ctlErr != nil {
		return -1
	}
	return n
}

func TestScriptEndsWithItsStdinAndItsContext(t *testing.T) {
	text := "trap 'echo bye; exit 5' TERM; echo begun; setsid sleep 600 & while :; do sleep 0.01; done"
	cfg := ScriptConfig{Shell: []string{"sh"}, Size: int64(len(text)), Grace: time.Minute}
	_, end, _ := script(t.Context(), t, cfg, scriptKey+"\n"+text, false)
	require.Contains(t, []int{5, 143}, end.Code) // the latter if it had not come to its trap
	require.Empty(t, end.Stage)
	ctx, cancel := context.WithCancel(t.Context())
	_, end, _ = scriptBeside(ctx, t, cfg, scriptKey+"\n"+text, true, func(_ *os.File, out string) {
		defer cancel()
		assert.Eventually(t, func() bool {
			said, err := os.ReadFile(out)
			return err == nil && strings.HasPrefix(string(said), "begun\n")
		}, time.Minute, time.Millisecond)
	})
	require.Equal(t, wire.End{Code: 5}, end)
	cfg.Grace = 0
	cfg.Size = int64(len("trap '' TERM; sleep 600"))
	_, end, _ = script(t.Context(), t, cfg, scriptKey+"\ntrap '' TERM; sleep 600", false)
	require.Equal(t, wire.End{Code: 137}, end)
}

func TestScriptWithoutAKeyIsRefused(t *testing.T) {
	for _, stdin := range []string{"", "echo hi\n", scriptKey, scriptKey + "0\n", strings.Repeat("x", 100)} {
		in, feed, err := os.Pipe()
		require.NoError(t, err)
		_, err = feed.WriteString(stdin)
		require.NoError(t, err)
		feed.Close()
		status, err := Script(t.Context(), in, os.Stdout, os.Stderr, ScriptConfig{Shell: []string{"sh"}})
		require.ErrorContains(t, err, "key", "%q", stdin)
		require.Equal(t, scriptExit, status)
		in.Close()
	}
}

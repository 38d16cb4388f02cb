package relay

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/wire"
)

func TestCommandLinesFindThisProgramByTheNamesOfGitLab(t *testing.T) {
	r := startRelay(t)
	argv := r.sh(t, `echo "no tools: $`+wire.ToolsVar+`"`).finish(t)
	require.Equal(t, "no tools: \n", argv.out, "for a step runner there is no such directory")
	dir := ""
	for range 2 {
		line := `cd "$` + wire.ToolsVar + `" && pwd && stat -c %a . && readlink *`
		c := r.startReq(t, wire.RelayStart{Line: line}).granted(t)
		said := strings.Split(c.finish(t).out, "\n")
		program, err := os.Executable()
		require.NoError(t, err)
		require.Equal(t, []string{"700", program, program, ""}, said[1:], "%q", said)
		require.Contains(t, []string{"", said[0]}, dir, "one directory for all")
		dir = said[0]
	}
	require.Equal(t, filepath.Join(r.tmp, wire.SocketBase), filepath.Dir(dir))
	require.NoError(t, r.stdin.Close())
	<-r.exited
	remotetest.RequireGone(t, dir)
}

// Symptom: a relay that could not make the directory once did not try again.
func TestCommandLinesHaveTheToolsOnceThereIsRoom(t *testing.T) {
	r := startRelay(t)
	tools := func() string {
		return r.startReq(t, wire.RelayStart{Line: `echo "$` + wire.ToolsVar + `"`}).granted(t).finish(t).out
	}
	var bases []string
	for _, base := range []string{wire.SocketBase, wire.SocketBase + "-" + strconv.Itoa(os.Geteuid())} {
		bases = append(bases, filepath.Join(r.tmp, base))
		require.NoError(t, os.WriteFile(bases[len(bases)-1], nil, 0o600))
	}
	require.Equal(t, "\n", tools())
	for _, base := range bases {
		require.NoError(t, os.Remove(base))
	}
	require.NotEqual(t, "\n", tools())
}

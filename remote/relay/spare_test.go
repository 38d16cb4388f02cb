package relay

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/wire"
)

func TestAServeIsKnownByItsCommandWhateverFlagsFollowItsSocket(t *testing.T) {
	program, err := os.Executable()
	require.NoError(t, err)
	command := func(argv ...string) []string {
		request := &wire.RelayStart{Argv: argv, Ready: "/tmp/s"}
		return serveCommand(&Command{program: program}, request)
	}
	require.Equal(t, []string{"stepmux", "steps", "serve", "--socket", "-", "--secret-stdin", "--isolation", "private"},
		command("stepmux", "steps", "serve", "--socket", "/tmp/s", "--secret-stdin", "--isolation", "private"))
	require.Equal(t, []string{"stepmux", "steps", "serve", "--socket", "-"},
		command("stepmux", "steps", "serve", "--socket", "/tmp/s"))
	for _, other := range [][]string{
		{"stepmux", "steps", "serve", "--socket"},
		{"stepmux", "steps", "serve", "--socket", "/tmp/other"},
		{"stepmux", "steps", "proxy", "--socket", "/tmp/s"},
		{"stepmux", "steps", "serve", "--socket", "/tmp/s", "--linger", "1m"},
		{"steps", "serve", "--socket", "/tmp/s"},
		{"--socket", "/tmp/s"},
		{"/tmp/s"},
	} {
		require.Nil(t, command(other...), "%q", other)
	}
}

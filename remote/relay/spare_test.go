package relay

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/wire"
)

func TestAServeIsRecognisedByItsCommandWithAnyFlagsAfterItsSocket(t *testing.T) {
	program, err := os.Executable()
	require.NoError(t, err)
	command := func(argv ...string) []string {
		request := &wire.RelayStart{Argv: argv, Ready: "/tmp/s"}
		c := &Command{program: program, argv: argv}
		c.linger(request)
		if serve := serveCommand(c, request); serve != nil {
			return serve.argv
		}
		return nil
	}
	require.Equal(t, []string{
		"stepmux", "steps", "serve", "--socket", "-", "--secret-stdin", "--isolation", "private", "--reuse",
	}, command("stepmux", "steps", "serve", "--socket", "/tmp/s", "--secret-stdin", "--isolation", "private"))
	require.Equal(t, []string{"stepmux", "steps", "serve", "--socket", "-", "--reuse"},
		command("stepmux", "steps", "serve", "--socket", "/tmp/s"))
	require.Equal(t, []string{"stepmux", "steps", "serve", "--socket", "-", "--linger", "1m", "--detached", "--reuse"},
		command("stepmux", "steps", "serve", "--socket", "/tmp/s", "--linger", "1m"))
	for _, other := range [][]string{
		{"stepmux", "steps", "serve", "--socket"},
		{"stepmux", "steps", "serve", "--socket", "/tmp/other"},
		{"stepmux", "steps", "proxy", "--socket", "/tmp/s"},
		{"steps", "serve", "--socket", "/tmp/s"},
		{"--socket", "/tmp/s"},
		{"/tmp/s"},
	} {
		require.Nil(t, command(other...), "%q", other)
	}
}

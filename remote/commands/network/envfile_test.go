package network

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/transfer"
)

func TestEnvFilesHaveQuotesAndEscapes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "env")
	require.NoError(t, os.WriteFile(file, []byte("# comment\n\nA=plain text\nexport B=\"{\\\"k\\\":\\\"\\$v\\n\\\"}\"\n"+
		"C='$x \\n'\nD=\n E = \"\\!\\`\" \n"), 0o600))
	env, err := readEnvFile(file)
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"A": "plain text", "B": "{\"k\":\"$v\n\"}", "C": `$x \n`, "D": "", "E": "!`",
	}, env)
	for _, bad := range []string{"A", "=x", "A=\"secret", "A=\"\\q\""} {
		require.NoError(t, os.WriteFile(file, []byte("OK=1\n"+bad), 0o600))
		_, err := readEnvFile(file)
		require.EqualError(t, err, "read --env-file: line 2 of "+file+" is not KEY=VALUE")
	}
}

func TestATransferMeterFrequencyOf0WritesNoLines(t *testing.T) {
	for value, want := range map[string]time.Duration{"": 10 * time.Second, "3s": 3 * time.Second, "0": -1, "0s": -1} {
		t.Setenv("TRANSFER_METER_FREQUENCY", value)
		h := newHelper(pflag.NewFlagSet("", pflag.ContinueOnError))
		h.transfers("upload", 5)
		_, err := h.parsed()
		require.NoError(t, err)
		require.Equal(t, want, h.transfer.MeterEvery, value)
	}
}

func TestPathsAndNamesHaveVariables(t *testing.T) {
	t.Setenv("NAME", "value")
	h := newHelper(pflag.NewFlagSet("", pflag.ContinueOnError))
	h.log = transfer.Log{To: io.Discard}
	h.file = map[string]string{"OTHER": "o"}
	for s, want := range map[string]string{
		"plain": "plain", "$NAME/x": "value/x", "${NAME}x$OTHER": "valuexo", "a$UNSET_NAME.b": "a.b",
		"${UNSET_NAME:-word}": "word", "${NAME:-word}": "value", "$(id)": "$(id)", "${NAME%x}": "${NAME%x}", "5$": "5$",
	} {
		require.Equal(t, want, h.expand(s), s)
	}
}

package proc

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// sessionKeyrings returns the ids of the session keyrings in the text of /proc/keys.
func sessionKeyrings(keys string) map[string]bool {
	ids := map[string]bool{}
	for line := range strings.Lines(keys) {
		if fields := strings.Fields(line); len(fields) > 8 && strings.HasPrefix(fields[8], "_ses") {
			ids[fields[0]] = true
		}
	}
	return ids
}

// Symptom: the commands of all builds of a login had the keyring of its session, where each found the keys of others.
//
//stepmux:reliability mechanisms | No build finds the keys of another | `remote/isolate/enter.go`
func TestIsolatedCommandsHaveASessionKeyringOfTheirOwn(t *testing.T) {
	_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, true)
	before, readErr := os.ReadFile("/proc/keys")
	if err := errors.Join(err, readErr); err != nil {
		t.Skip("part missing: keyrings: ", err)
	}
	known := sessionKeyrings(string(before))
	for range 2 {
		in := isolated(t, t.TempDir())
		out := newLines(t)
		c := shell("cat /proc/keys; echo end")
		c.Stdout = out
		p, err := in.Start(t.Context(), c)
		require.NoError(t, err)
		var keys strings.Builder
		for line := out.next(t); line != "end"; line = out.next(t) {
			keys.WriteString(line + "\n")
		}
		require.Zero(t, wait(t, p).Code)
		require.NoError(t, p.Close())
		own := 0
		for id := range sessionKeyrings(keys.String()) {
			if !known[id] {
				known[id] = true
				own++
			}
		}
		require.NotZero(t, own, "a keyring that was not there before:\n%s", &keys)
	}
}

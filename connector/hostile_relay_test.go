package connector_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

//stepmux:faults input | A VM floods its manager's log
//stepmux:with internal/vmlog.TestFloodOfOneMessageIsDroppedAndHidesNoOther, internal/vmlog.TestLongTextsAreCut
func TestRelayThatFloodsItsStandardErrorIsLoggedWithinBounds(t *testing.T) {
	// Symptom: a VM made its manager log 2.35 GB in 15 s.
	lines, err := strconv.Atoi(cmp.Or(os.Getenv("STEPMUX_HOSTILE"), "100000"))
	require.NoError(t, err, "STEPMUX_HOSTILE")
	for name, flood := range map[string]string{
		"many lines":    fmt.Sprintf("yes 'this relay says a lot, and says it again' | head -n %d", lines),
		"one long line": fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", 40*lines),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "stepmux")
			text := "#!/bin/sh\n[ \"$2\" != relay ] || { " + flood + "; } >&2\nexec " + runnertest.Command(t)[0] + " \"$@\"\n"
			require.NoError(t, os.WriteFile(path, []byte(text), 0o700))
			logger, log := logs()
			b := newBuild(t, embedded(t), "b1", path, func(c *connector.Config) {
				c.Logger, c.Route = logger, connector.Relay
			})
			require.NoError(t, b.runs(t))
			require.Contains(t, log.String(), "msg=relay")
			require.Less(t, len(log.String()), 64<<10)
		})
	}
}

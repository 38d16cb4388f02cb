package instance_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// Symptom: if the user of a VM had too little of something, the Go runtime of the step runner could not start, and the
// build's log had its stacks: up to 295 lines.
//
//stepmux:faults users | A language's runtime that cannot start fills the log with its stacks
//stepmux:with internal/tail.TestTheFirstLinesOfACrashAreKept, remote/proc.TestAnInitThatCannotStartSaysWhyInOneSentence
func TestAStepRunnerThatCannotStartSaysSoInOneSentence(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		route connector.Route
		poor  string // the command that gets no memory
	}{{connector.Relay, "*"}, {connector.Session, "*"}, {connector.Session, "*serve*"}} {
		t.Run(string(c.route)+c.poor, func(t *testing.T) {
			t.Parallel()
			v := newVM(t, sshtest.InProcess(t, embeddedvm.Config{}))
			poor := filepath.Join(t.TempDir(), "poor.sh")
			text := `#!/bin/sh
case "$*" in ` + c.poor + `) ulimit -v 100000; esac
exec ` + v.runner[0] + ` "$@"`
			require.NoError(t, os.WriteFile(poor, []byte(text), 0o700))
			v.runner = []string{poor}
			events, log := &bytes.Buffer{}, &sshtest.Log{}
			p := v.provider(t, 1, func(cfg *instance.Config, _ *instance.Instance) {
				cfg.Route, cfg.Logger = c.route, slog.New(slog.NewTextHandler(events, nil))
			})
			err := build(sshtest.Within(t), p, "b1", script("true"), log)
			require.ErrorContains(t, err, "fatal error: failed to reserve page summary memory")
			require.ErrorContains(t, err, "raise ulimit -v")
			require.NotContains(t, err.Error(), "runtime stack")
			require.NotContains(t, log.String(), "runtime stack", "%s", log)
			require.LessOrEqual(t, strings.Count(log.String(), "\n"), 3, "%s", log)
			require.NoError(t, p.Close())
			if c.poor == "*serve*" {
				require.Contains(t, events.String(), "runtime.throw", "-v shows the stacks")
			}
		})
	}
}

package script_test

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/connector/script"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// Symptom: a script or command in a session hung until its deadline if the login ran another program in place of it, or
// that program ran the script's text.
func TestALoginThatRunsNoScriptIsNamedAtOnce(t *testing.T) {
	t.Parallel()
	const short = 500 * time.Millisecond
	for name, at := range map[string]struct {
		part, force, line string // line is of a start file
		said              string
		ready             time.Duration // of a program that does not end. If zero, more than is needed
	}{
		"start file that starts zsh":      {part: "zsh", line: "exec zsh -f", said: "no answer within 500ms", ready: short},
		"start file that reads":           {line: "read -r x", said: "no answer within 500ms", ready: short},
		"start file that ends":            {line: "echo bye; exit", said: "bye"},
		"start file that starts no shell": {line: "exec no-such-shell", said: "no-such-shell: not found"},
		"refusal on both streams":         {force: "echo out; echo err >&2; exit 3", said: "out | err"},
		"refusal that moves the cursor":   {force: `printf '\033[2Jgone'; exit 1`, said: "[2Jgone"},
		"program that copies":             {force: "cat", said: "no answer within 500ms", ready: short},
		"program that prints without end": {force: "yes", said: "y y y"},
		"program that waits": {
			force: "echo menu; echo which >&2; exec sleep 600", said: "menu | which", ready: 4 * short,
		},
		"shell":                   {force: "sh", said: "no answer within 500ms", ready: short},
		"shell that ends at once": {force: "true", said: "exit status 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			force := at.force
			if at.part != "" {
				sshtest.RequirePart(t, at.part, "/usr/bin/"+at.part)
			}
			if at.line != "" {
				force = sshtest.StartFile(t, at.line)
			}
			conn := connect(t, sshtest.OpenSSH(t, "ForceCommand "+force))
			ran := filepath.Join(t.TempDir(), "ran")
			ready := cmp.Or(at.ready, sshtest.Bound)
			line := "touch " + ran
			for way, start := range map[string]func(ctx context.Context) error{
				"script": func(ctx context.Context) error {
					_, err := script.Run(ctx, conn, script.Script{
						Shell: []string{"sh", "-e"}, Text: []byte(line + "\n"), ReadyTimeout: ready,
					})
					require.ErrorContains(t, err, `the login did not run the command "sh -e"`)
					return err
				},
				"command": func(ctx context.Context) error {
					_, err := script.RunCommand(ctx, conn, script.Command{Line: line, ReadyTimeout: ready}, nil, nil)
					require.ErrorContains(t, err, `the login did not run the command "touch `)
					return err
				},
			} {
				err := start(sshtest.Within(t))
				require.ErrorIs(t, err, program.ErrNotRun, way)
				requireMachineError(t, err, "login")
				require.ErrorContains(t, err, at.said)
				require.ErrorContains(t, err, "ForceCommand")
				require.Less(t, len(err.Error()), 4<<10)
				require.NotContains(t, err.Error(), "\x1b")
			}
			_, err := os.Stat(ran)
			require.ErrorIs(t, err, os.ErrNotExist, "another program has run the text")
		})
	}
}

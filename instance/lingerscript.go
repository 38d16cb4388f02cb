package instance

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/script"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// maxInput bounds the text of a script, or the standard input of a command, of a build that lingers, in bytes. A step
// runner accepts no more in the variables of a job.
const maxInput = 8 << 20

// lingeringScript is a script or a command line as a job.
type lingeringScript struct {
	shell          []string // reads the script on stdin; if empty, bash
	line           string   // replaces shell: for the login shell
	stdin          []byte
	stdout, stderr io.Writer // nil: discarded
}

// The steps of such a job. If a step other than the last fails, the machine is at fault.
const (
	stepShell  = "shell"
	stepInput  = "input"
	stepScript = "script"
)

// job returns the job for s. Texts of the caller are passed in variables, so that no part of them is taken for an
// expression.
func (s *lingeringScript) job() connector.Job {
	argv := append([]string(nil), s.shell...)
	if len(argv) == 0 && s.line == "" {
		argv = []string{"bash"}
	}
	vars := []*stepmuxv1.Variable{{Key: "STDIN", Value: string(s.stdin), File: true}}
	var steps strings.Builder
	steps.WriteString("run:\n")
	step := func(name, text string, args ...string) {
		fmt.Fprintf(&steps, "  - {name: %s, exec: {command: [sh, -c, '%s', sh", name, text)
		for _, arg := range args {
			fmt.Fprintf(&steps, `, "${{ vars.%s }}"`, arg)
		}
		steps.WriteString("]}}\n")
	}
	file := `"$1"`
	if !utf8.Valid(s.stdin) { // a variable must be text
		vars[0].Value = base64.StdEncoding.EncodeToString(s.stdin)
		step(stepInput, `base64 -d <"$1" >"$1.raw"`, "STDIN")
		file = `"$1.raw"`
	}
	home := `cd "${HOME:-/}" 2>/dev/null || cd /; exec <` + file + "; shift; "
	if s.line != "" {
		vars = append(vars, &stepmuxv1.Variable{Key: "LINE", Value: s.line})
		step(stepScript, home+`exec "${SHELL:-/bin/sh}" -c "$1"`, "STDIN", "LINE")
	} else {
		names := []string{"STDIN"}
		for i, arg := range argv {
			names = append(names, "ARG_"+strconv.Itoa(i))
			vars = append(vars, &stepmuxv1.Variable{Key: names[i+1], Value: arg})
		}
		step(stepShell, `command -v -- "$1" >/dev/null`, names[1])
		step(stepScript, home+`exec "$@"`, names...)
	}
	return connector.Job{Job: stepmuxv1.PassingAll().With(&stepmuxv1.Job{Steps: []byte(steps.String()), Variables: vars})}
}

// runLingering runs s in the step runner of the build, and starts that if necessary.
func (e *Executor) runLingering(ctx context.Context, s lingeringScript) error {
	if len(s.stdin) > maxInput {
		return &connector.RequestError{Message: fmt.Sprintf(
			"the build's script or standard input has %d bytes, at most %d can linger", len(s.stdin), maxInput)}
	}
	c, err := e.stepRunner(ctx)
	if err != nil {
		return fmt.Errorf("to linger, a script needs a step runner on the instance: %w", err)
	}
	job := s.job()
	job.ID = e.build.ID + "-" + rand.Text() // else one that another process ran would count as this one
	failed := connector.StepEvent{}
	job.Grace, job.Stderr = durationpb.New(e.provider.cfg.Grace), cmp.Or(s.stderr, io.Discard)
	job.OnStep = func(event connector.StepEvent) {
		if event.Status == "failure" {
			failed = event
		}
	}
	result, err := c.Execute(ctx, job, s.stdout)
	switch {
	case err != nil:
		return err
	case result.Status != connector.Failed || result.TimedOut || result.System || result.ExitCode == 0:
		return outcome(result)
	case failed.Name == stepShell:
		return &script.MachineError{
			Stage: stepShell, Text: fmt.Sprintf("%s is not installed, or not in the PATH of the login", s.shellName()),
			Hint: "install the shell on the VM, or configure another",
		}
	case failed.Name == stepInput:
		return &script.MachineError{Stage: "tool", Text: "there is no base64 that decodes its input: " + result.Message}
	default:
		return exitError(result.ExitCode, nil)
	}
}

func (s *lingeringScript) shellName() string {
	if len(s.shell) > 0 {
		return s.shell[0]
	}
	return "bash"
}

// stepRunner returns the connector of a build that lingers, once its step runner listens. The start goes on when ctx
// ends, until Cleanup: the build's next script or command needs the step runner too.
func (e *Executor) stepRunner(ctx context.Context) (*connector.Connector, error) {
	return e.start.Do(ctx, func(ctx context.Context) (*connector.Connector, time.Duration, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(e.life, func() { cancel(ErrCleanedUp) })() //nolint:contextcheck // it is the build's
		started := func() *connector.Connector {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.connector
		}
		if c := started(); c != nil { // by Connect or Resume
			return c, -1, nil
		}
		_, err := e.connect(ctx, "")
		return started(), -1, err
	})
}

// readInput reads a command's standard input to its end. It does not wait for a Read that is under way when ctx ends.
func readInput(ctx context.Context, from io.Reader) ([]byte, error) {
	if from == nil {
		return nil, nil
	}
	var text bytes.Buffer
	ended := make(chan error, 1)
	go func() { // ends when from's Read returns
		_, err := io.Copy(&text, io.LimitReader(from, maxInput+1))
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			return nil, fmt.Errorf("run command: read its standard input: %w", err)
		}
		return text.Bytes(), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

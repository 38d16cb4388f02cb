package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/mux/channel"
	"github.com/stepmux/stepmux/mux/relay"
)

// execution is a command that is executed in a container, as a stream: Write goes to its stdin, Read reads its stdout
// and passes its stderr on. The command's end is known only if the server reports it: a stream that ends without a
// report is an error.
type execution interface {
	relay.Duplex
	// exit waits until the stream has ended, as far as Read has read it, or until ctx has. It returns nil if the
	// command succeeded, a *channel.ExitError if it has another exit status, and errNoStatus if its end was not
	// reported.
	exit(ctx context.Context) error
}

// errNoStatus means that a stream ended without a report about its command. The command may still run.
var errNoStatus = errors.New("the stream to the pod was cut")

// ending is the server's report about the end of a command.
type ending struct {
	mu     sync.Mutex    // guards the following
	status *status       // nil until the server has reported it
	ended  chan struct{} // closed once Read has returned an error
}

// take reads the report.
func (e *ending) take(text []byte) error {
	if len(text) > maxStatus {
		return errors.New("the API server's word about the end of the command is too long")
	}
	text = bytes.TrimSpace(text)
	told := &status{}
	if err := json.Unmarshal(text, told); err != nil || told.Status != statusSuccess && told.Status != statusFailure {
		return fmt.Errorf("the API server's word about the end of the command is %.80q", text)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.status = told
	return nil
}

// told returns the report, or nil.
func (e *ending) told() *status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status
}

func (e *ending) markEnded() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !pause.Done(e.ended) {
		close(e.ended)
	}
}

// exit implements execution.
func (e *ending) exit(ctx context.Context) error {
	select {
	case <-e.ended:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	told := e.told()
	switch {
	case told == nil:
		return errNoStatus
	case told.Status == statusSuccess:
		return nil
	}
	if told.Reason == "NonZeroExitCode" {
		for _, cause := range told.Details.Causes {
			if code, err := strconv.Atoi(cause.Message); cause.Reason == "ExitCode" && err == nil && code != 0 {
				return &channel.ExitError{Status: code}
			}
		}
	}
	return fmt.Errorf("the command could not be executed: %s", termtext.Line(termtext.Cut(told.Message, maxText)))
}

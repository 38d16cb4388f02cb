package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/mux/channel"
	"github.com/stepmux/stepmux/mux/relay"
)

// execution is a command that is executed in a container, and the stream to its standard streams: Write goes to stdin,
// Read reads stdout and passes stderr on. The command's end is known only if the server tells it: a stream that ends
// without that word is an error.
type execution interface {
	relay.Duplex
	// exit waits until the stream has ended, as far as Read has read it, or ctx has. It returns nil for a command that
	// ended well, a *channel.ExitError for one that told its exit status, and errNoStatus if nobody told it.
	exit(ctx context.Context) error
}

// errNoStatus says that a stream has ended without the word of how its command ended. The command may go on.
var errNoStatus = errors.New("the stream to the pod was cut")

// ending is the server's word about the end of a command.
type ending struct {
	mu     sync.Mutex    // guards the following
	status *status       // nil before the server has told it
	ended  chan struct{} // closed once Read has returned an error
}

// take reads the word.
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

// told returns the word, or nil.
func (e *ending) told() *status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status
}

func (e *ending) markEnded() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !isDone(e.ended) {
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

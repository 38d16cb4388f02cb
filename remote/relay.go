package remote

import (
	"context"
	"fmt"

	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/relay"
)

// RelayConfig says which sockets a relay may reach and how it ends processes.
type RelayConfig = relay.Config

// Relay starts processes and connects to the sockets of builds for a manager. The manager asks for both over stdio.In
// and stdio.Out: any number at a time, each by a yamux stream (docs/protocol.md). Relay writes nothing else to Out;
// notices go to Err. It runs until
//
//   - stdio.In ends, because the manager has gone: then the error is nil;
//   - ctx ends; the caller lets SIGTERM, SIGINT and SIGHUP end it;
//   - the manager breaks the protocol, takes no more bytes, or gives no sign of life for 45 s.
//
// At the end Relay hangs up first, so that the manager counts running processes as lost. Then it stops every process
// (SIGTERM to its process group, Grace, SIGKILL) and all descendants, except for serves that linger, and removes the
// directories of dead serves. It waits for all of that, which is bounded, and returns how many processes could not be
// killed. If the relay itself is killed, its processes get SIGTERM and their stdin ends.
//
// No other part of the program may start processes. While Relay runs, the program is the parent of all orphans among
// its descendants (PR_SET_CHILD_SUBREAPER, prctl(2)), and it reaps all its children. At the end it kills the children
// that it did not have before. From then on other processes of the user cannot look into this one (PR_SET_DUMPABLE).
func Relay(ctx context.Context, stdio Stdio, cfg RelayConfig) error {
	err := pipe.Conceal()
	if err == nil {
		err = relay.Run(ctx, stdio.In, stdio.Out, stdio.Err, cfg)
	}
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	return nil
}

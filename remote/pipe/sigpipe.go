package pipe

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// WithstandSIGPIPE makes a write to a closed stdout or stderr return an error, in place of ending the program, until
// restore is called. It catches the signal instead of ignoring it, because every child process would inherit an ignored
// signal.
func WithstandSIGPIPE() (restore func()) {
	sigpipe := make(chan os.Signal, 1) // never received from: a registered channel is enough
	signal.Notify(sigpipe, unix.SIGPIPE)
	return func() { signal.Stop(sigpipe) }
}

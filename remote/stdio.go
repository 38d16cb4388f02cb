package remote

import (
	"io"
	"os"

	"github.com/stepmux/stepmux/remote/pipe"
)

// Stdio is the standard input and output of a command of the VM's end.
//
// In and Out are files because Serve, Proxy and Relay must be able to stop waiting for them. The commands put the open
// files into non-blocking mode, as ssh does, and restore the mode before they return. The caller closes the files.
type Stdio struct {
	In  *os.File  // nil: no input
	Out *os.File  // Serve never writes to it
	Err io.Writer // the ready marker and notices, one Write each; required
}

// SocketOnStdin in place of a socket's path means that the path is the first line of stdin. A manager prestarts a serve
// or a proxy with it, before it knows their build.
const SocketOnStdin = pipe.SocketOnStdin

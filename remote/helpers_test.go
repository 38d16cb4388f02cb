package remote

import (
	"fmt"
	"os"

	"github.com/stepmux/stepmux/internal/wire"
)

// greeting is the stderr of a serve without a secret that has no trouble.
func greeting(socket string) string {
	return wire.ReadyLine(socket) + fmt.Sprintf(
		"step-runner: no secret guards this socket: "+
			"every process of user %d can read, run and cancel jobs by it (--secret-stdin)\n", os.Geteuid())
}

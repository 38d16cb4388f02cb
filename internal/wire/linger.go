package wire

import "crypto/rand"

const (
	// ManagerKey is the metadata key under which a call has the name of its manager, for a serve that lingers.
	ManagerKey = "stepmux-manager"

	// ProxyNotFound is the exit code of a proxy on whose socket no process listens.
	ProxyNotFound = 4

	maxManager = 64 // bytes of a manager's name
)

// Starter is the name of the manager that starts a serve. serve knows it before the first call, so a manager that
// attaches later replaces it in any case.
const Starter = "starter"

// NewManager returns a unique name for a manager that attaches to a serve which another one has started.
func NewManager() string { return rand.Text() }

// ValidManager reports whether name is valid for a manager: 1 to 64 printable characters of ASCII.
func ValidManager(name string) bool {
	for i := range len(name) {
		if name[i] <= ' ' || name[i] > '~' {
			return false
		}
	}
	return name != "" && len(name) <= maxManager
}

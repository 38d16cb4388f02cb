package wire

import (
	"fmt"
	"slices"
)

// The names of the isolation levels. Package remote/walls describes them.
const (
	IsolationAuto      = "auto" // the best level that the VM offers
	IsolationOff       = "off"
	IsolationProcesses = "processes"
	IsolationPrivate   = "private"
)

// Isolations are the names of ParseIsolation, for people.
const Isolations = "auto, off, processes or private"

var isolations = []string{IsolationAuto, IsolationOff, IsolationProcesses, IsolationPrivate}

// ParseIsolation returns the level of that name. The empty name is that of auto.
func ParseIsolation(name string) (string, error) {
	switch {
	case name == "":
		return IsolationAuto, nil
	case slices.Contains(isolations, name):
		return name, nil
	default:
		return "", fmt.Errorf("isolation %.40q: use %s", name, Isolations)
	}
}

// IsolationVar is the environment variable on a VM that sets the isolation of builds, if their manager does not set it,
// like "steps serve --isolation".
const IsolationVar = "STEPMUX_ISOLATION"

// ToolsVar is an environment variable of the command lines that a relay runs: a directory with links to this program,
// by the names that the scripts of a GitLab manager use.
const ToolsVar = "STEPMUX_TOOLS"

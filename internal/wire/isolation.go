package wire

import (
	"fmt"
	"slices"
)

// The names of the isolation levels. Package remote/walls describes them.
const (
	IsolationAuto      = "auto" // the best that the VM has
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

// IsolationVar is the environment variable of a VM that gives the isolation of builds whose manager asks for none, as
// "steps serve --isolation" does.
const IsolationVar = "STEPMUX_ISOLATION"

// ToolsVar is the environment variable of a command line that a relay runs: the directory with this program under the
// names by which the scripts of a GitLab manager call it.
const ToolsVar = "STEPMUX_TOOLS"

package vmconfig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Level says how far the processes of a build are isolated. Package remote/isolate does it.
type Level string

const (
	// Auto is Processes if the VM allows it and the user cannot become root by sudo without a password, otherwise Off.
	// It may also be written "auto".
	Auto Level = ""
	// Off is no isolation.
	Off Level = "off"
	// Processes gives the build namespaces of its own for processes, mounts and IPC.
	Processes Level = "processes"
	// Private is Processes with a HOME of its own: nothing that a build writes there stays.
	Private Level = "private"
)

// LevelVar is the environment variable on a VM that sets the Level of builds if their manager does not set it.
const LevelVar = "STEPMUX_ISOLATION"

// auto is the name of Auto.
const auto = "auto"

// levels are the names of all levels.
var levels = []string{auto, string(Off), string(Processes), string(Private)}

// ParseLevel returns the level of that name. The empty name is Auto.
func ParseLevel(name string) (Level, error) { return parseName(cmp.Or(name, auto)) }

// parseName is ParseLevel for text that somebody has written: an empty one is a mistake.
func parseName(name string) (Level, error) {
	switch last := len(levels) - 1; {
	case name == auto:
		return Auto, nil
	case slices.Contains(levels, name):
		return Level(name), nil
	default:
		return "", fmt.Errorf("%.40q: use %s or %s", name, strings.Join(levels[:last], ", "), levels[last])
	}
}

// String returns the level's name.
func (l Level) String() string { return cmp.Or(string(l), auto) }

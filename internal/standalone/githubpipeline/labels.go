package githubpipeline

import (
	"strings"

	"github.com/stepmux/stepmux/remote/step/action"
)

// Labels returns the labels that a VM must have for a job with these runs-on, in a fleet whose VMs have the labels
// fleet. The label NAME=VALUE stands for that label of a VM; a group, or another label, such as gpu, for group=NAME or
// gpu=true, if a VM of the fleet has that. unknown are the others: on GitHub such a job waits for ever, and here any VM
// runs it. Those that all VMs have by nature, as they are machines with Linux, are not among them.
func Labels(runsOn []string, fleet []map[string]string) (wanted map[string]string, unknown []string) {
	wanted = map[string]string{}
	for _, label := range runsOn {
		name, value, isPair := strings.Cut(label, "=")
		if !isPair {
			value = "true"
		}
		if isPair && name != action.GroupLabel || has(fleet, name, value) {
			wanted[name] = value
		} else if l := strings.ToLower(label); l != "self-hosted" && l != "linux" && !strings.HasPrefix(l, "ubuntu-") {
			unknown = append(unknown, label)
		}
	}
	return wanted, unknown
}

// has reports whether a VM has a label.
func has(fleet []map[string]string, name, value string) bool {
	for _, labels := range fleet {
		if is, ok := labels[name]; ok && is == value {
			return true
		}
	}
	return false
}

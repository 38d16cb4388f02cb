package carry

import (
	"fmt"
	"strings"

	"github.com/stepmux/stepmux/remote/step/action"
)

// RunsOn describes the machine on which a job wants to run.
type RunsOn struct {
	// Key is the key of the file, such as runs-on, and Labels are its values. The label NAME=VALUE stands for that label
	// of a VM; another one, such as gpu, for gpu=true.
	Key    string
	Labels []string
	// Pairs says that a VM must have a label NAME=VALUE, unless NAME is Soft. Any VM runs a job with other labels that no
	// VM has.
	Pairs bool
	Soft  string
}

// Choose returns the labels that a VM must have for the job, in a fleet whose VMs have the labels fleet. notes name the
// others: on a server such a job waits for ever, and here any VM runs it. Labels that all VMs have by nature, as they
// are machines with Linux, are not among them.
func (r RunsOn) Choose(fleet []map[string]string) (wanted map[string]string, notes []string) {
	wanted = map[string]string{}
	for _, label := range r.Labels {
		name, value, isPair := strings.Cut(label, "=")
		if !isPair {
			value = "true"
		}
		if isPair && r.Pairs && name != r.Soft || has(fleet, name, value) {
			wanted[name] = value
		} else if !action.IsCommonLabel(label) {
			notes = append(notes, fmt.Sprintf("%s: no VM of the fleet has the label %q: any VM runs such jobs", r.Key, label))
		}
	}
	return wanted, notes
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

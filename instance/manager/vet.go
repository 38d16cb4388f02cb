package manager

import (
	"cmp"
	"fmt"
	"strings"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// maxWarned bounds the name of a job's file in a warning, in bytes. The package lang bounds the rest.
const maxWarned = 200

// vet sets the warnings of a request, and returns why it is refused: its job cannot run at its place, or has a warning
// although scripts are strict.
func (m *Manager) vet(req *pb.SubmitRequest) error {
	at, err := m.where(req)
	if err != nil {
		return err
	}
	req.Warnings = warningsOf(req.GetJob(), at.steps)
	if m.cfg.StrictScripts && len(req.GetWarnings()) > 0 {
		first := req.GetWarnings()[0]
		return fmt.Errorf("%s: %s (--strict-scripts of the manager)", first.GetWhere(), first.GetMessage())
	}
	return nil
}

// warningsOf returns the warnings about the scripts of a job, as stepmux validate has them. steps are its steps without
// the keys of its container. A job that cannot be read has none: its build ends with the mistake.
func warningsOf(job *stepmuxv1.Job, steps []byte) (list []*pb.Warning) {
	name := cmp.Or(job.GetStepsFile(), "steps")
	if len(name) > maxWarned {
		name = "..." + strings.ToValidUTF8(name[len(name)-maxWarned:], "")
	}
	var found []*lang.Error
	if job.GetScript() != "" {
		found, _ = lang.VetScript(name, job.GetScript())
	} else {
		_, found, _ = lang.Vet(name, steps, false)
	}
	for _, w := range found {
		warning := &pb.Warning{Where: w.Where, Line: int32(w.Line), Column: int32(w.Column), Message: w.Message}
		if job.GetGenerated() { // the positions are those of the generated text
			warning.Where, warning.Line, warning.Column = name, 0, 0
		}
		list = append(list, warning)
	}
	return list
}

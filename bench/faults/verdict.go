package faults

import (
	"fmt"
	"strings"
)

// Kinds of findings.
const (
	FalseSuccess = "false success"     // a build is said to have succeeded that did not
	WrongBlame   = "wrong blame"       // a build failed for another reason than reported
	NeedlessLoss = "needless loss"     // a build is lost though the fault should do no harm
	NoEnd        = "no end"            // a build did not end within its bound
	WrongLog     = "wrong log"         // bytes of a log are missing or wrong
	Orphan       = "orphan"            // a process is left
	Leftover     = "leftover"          // a file is left
	Leak         = "leak"              // the manager is left with goroutines or files
	Connections  = "connections"       // there was more than one connection to a VM
	Unusable     = "unusable"          // a VM takes no builds after the fault
	Twice        = "ran twice"         // a script was run again
	Broken       = "the rig is broken" // the round says nothing about the product
)

// AllFindings are all of these but Broken.
var AllFindings = []string{
	FalseSuccess, WrongBlame, NeedlessLoss, NoEnd, WrongLog, Orphan, Leftover, Leak,
	Connections, Unusable, Twice,
}

// Finding is something that is wrong.
type Finding struct {
	What  string `json:"what"`
	Build string `json:"build,omitempty"`
	Text  string `json:"text"`
}

// verdict is a build's end as the product tells it.
type verdict struct {
	Reason string // empty: success; else a failure reason
	Code   int
	Text   string
}

const (
	byScript  = "script_failure"
	bySystem  = "runner_system_failure"
	canceled  = "job_canceled"
	timedOut  = "job_execution_timeout"
	wrongYAML = "runner_configuration_error"
)

// circumstances excuse the end of a build.
type circumstances struct {
	lossy     bool // it may be lost
	canceled  bool // somebody cancelled it
	inherited bool // its script may fail of the fault by itself
}

// notComplete is in the message of a build of whose output a part could not be kept.
const notComplete = " is not complete: "

// judge compares the product's account of a build with the truth.
func judge(b *buildPlan, said verdict, truth observation, log logState, met circumstances) []Finding {
	var found []Finding
	add := func(what, format string, args ...any) {
		found = append(found, Finding{what, b.ID, fmt.Sprintf(format, args...)})
	}
	real := "the script did not get to its end"
	if truth.Ending {
		real = fmt.Sprintf("the script ended with exit code %d", truth.Code)
	}
	switch said.Reason {
	case "":
		if !truth.Ending || truth.Code != 0 {
			add(FalseSuccess, "said to have succeeded: %s", real)
		}
	case byScript:
		if met.inherited && !truth.Ending && said.Code != 0 {
			return found // its shell could not do its work, and says so
		}
		if !truth.Ending || truth.Code == 0 || truth.Code != said.Code {
			add(WrongBlame, "said to have failed by its script with code %d: %s (%s)", said.Code, real, said.Text)
		}
	case bySystem:
		if !met.lossy {
			add(NeedlessLoss, "%s", said.Text)
		}
	case canceled:
		if !met.canceled {
			add(WrongBlame, "said to be cancelled, but no caller cancelled it: %s", said.Text)
		}
	default:
		add(WrongBlame, "said to have ended by %s: %s", said.Reason, said.Text)
	}
	if said.Reason == bySystem && said.Code == 0 && said.Text == "" {
		add(WrongBlame, "a failure of the system without a word of why")
	}
	if truth.Twice {
		add(Twice, "the script was started more than once")
	}
	switch complete := said.Reason == "" || said.Reason == byScript; {
	case log.Bad != "":
		add(WrongLog, "%s", log.Bad)
	case complete && met.lossy && said.Reason == byScript && strings.Contains(said.Text, notComplete):
		// a part is lost, and the build says so
	case complete && log.Lines != b.Lines:
		add(WrongLog, "%d lines of %d, and the build has %s", log.Lines, b.Lines, endWord(said))
	case log.Lines > b.Lines:
		add(WrongLog, "%d lines of %d", log.Lines, b.Lines)
	}
	return found
}

func endWord(said verdict) string {
	if said.Reason == "" {
		return "succeeded"
	}
	return "failed by its script"
}

package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

const (
	// maxReason bounds a text of the VM about its isolation, in bytes.
	maxReason = 400
	// hideProgram is the advice if processes of builds can see step runners.
	hideProgram = "install stepmux-vm owned by root, with mode 0711"
)

// isolationReport is the answer of `steps isolation`; see docs/protocol.md.
type isolationReport struct {
	Level    string `json:"level"`
	Reason   string `json:"reason"`
	Remedy   string `json:"remedy"`
	Readable bool   `json:"program_readable"`

	Limits       *bool  `json:"limits"` // nil from an older program
	LimitsReason string `json:"limits_reason"`
	LimitsRemedy string `json:"limits_remedy"`
}

// tryIsolation makes the VM's program try the isolation that builds would have. Call it before a relay takes a
// session.
func (e *examination) tryIsolation(ctx context.Context) (told isolationReport, err error) {
	argv := append(slices.Clone(runner(e.in)), "steps", "isolation")
	out, err := e.run(ctx, append(argv, e.in.Args(vmconfig.TempDirFlag)...)...)
	switch {
	case err != nil:
		return told, err
	case out.err != nil:
		return told, fmt.Errorf("%w: %s", out.err, termtext.Short(out.stderr, maxReason))
	}
	text := strings.TrimSpace(out.stdout) // a login shell may print more text before it
	err = json.Unmarshal([]byte(text[strings.LastIndexByte(text, '\n')+1:]), &told)
	return told, err
}

// judgeIsolation judges the result of tryIsolation. p is the program that runs the builds.
func (e *examination) judgeIsolation(p program.Program, told isolationReport, err error) Finding {
	switch {
	case p.Kind != program.Stepmux:
		return warning(checkIsolation, fmt.Sprintf("off: %v does not isolate builds", p), install(e.in), isolationGain)
	case err != nil:
		return warning(checkIsolation, fmt.Sprintf("the VM does not tell: %v", err), install(e.in), isolationGain)
	default:
		return told.judge(e.in.Isolation)
	}
}

// judgeLimits judges the part of the answer about limits.
func (e *examination) judgeLimits(p program.Program, told isolationReport, err error) Finding {
	asked := e.in.Limits != (vmconfig.Limits{})
	reason := termtext.Short(told.LimitsReason, maxReason)
	switch {
	case p.Kind != program.Stepmux:
		reason = fmt.Sprintf("%v supports no limits", p)
	case err != nil:
		reason = fmt.Sprintf("the VM does not tell: %v", err)
	case told.Limits == nil:
		reason = "the stepmux there is older than this program and supports no limits"
	case *told.Limits && asked:
		return okay(checkLimits, "as configured")
	case *told.Limits:
		return okay(checkLimits, "available for memory, processes and processors (--build-memory, ...)")
	}
	remedy := termtext.Short(told.LimitsRemedy, maxReason)
	if asked {
		return failure(checkLimits, "not available for the builds: "+reason, remedy)
	}
	if p.Kind != program.Stepmux || err != nil || told.Limits == nil {
		remedy = install(e.in)
	}
	return warning(checkLimits, "not available: "+reason, remedy,
		"--build-memory, --build-pids and --build-cpus keep a build from taking the whole VM")
}

// isolationGain is the benefit of isolation, for findings.
const isolationGain = "a build cannot see, stop or outlive another one's processes, nor reach its files"

// judge judges the answer for the level that was requested.
func (r isolationReport) judge(asked vmconfig.Level) Finding {
	reason, remedy := termtext.Short(r.Reason, maxReason), termtext.Short(r.Remedy, maxReason)
	level, err := vmconfig.ParseLevel(r.Level)
	switch {
	case err != nil:
		err = fmt.Errorf("isolation %w", err)
	case r.Level == "" && reason != "":
		return failure(checkIsolation, reason, cmp.Or(remedy, "ask for another level: isolation: auto in the inventory"))
	case err == nil && level == vmconfig.Auto:
		err = errors.New("the VM names no level")
	case err == nil && asked != vmconfig.Auto && asked != level:
		err = fmt.Errorf("the VM has isolation %s, not %s", level, asked)
	}
	switch {
	case err != nil:
		return failure(checkIsolation, err.Error(), "")
	case level != vmconfig.Off:
		return okay(checkIsolation, level.String())
	}
	var changes []string
	if remedy != "" {
		changes = append(changes, remedy)
	}
	gain := isolationGain
	if r.Readable {
		changes = append(changes, hideProgram)
		gain += "; a program that its user cannot read cannot be looked into while it starts"
	}
	if reason == "" { // switched off on purpose
		f := okay(checkIsolation, "off, as configured")
		if asked == vmconfig.Auto {
			f.Detail = "off, as the VM's variable " + vmconfig.LevelVar + " says"
		}
		f.Change = strings.Join(changes, "; ")
		return f
	}
	return warning(checkIsolation, "off: "+reason, strings.Join(changes, "; and "), gain)
}

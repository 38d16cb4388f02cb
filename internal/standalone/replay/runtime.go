package replay

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/stepmux/stepmux/internal/filesum"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/trace"
	"github.com/stepmux/stepmux/remote/step/trace/recording"
)

// Runtime says whether a replay accepts another machine, or other programs, than those of the trace.
type Runtime string

// The values of Runtime.
const (
	// ExactRuntime refuses them.
	ExactRuntime Runtime = "exact"
	// WarnRuntime accepts them, with a notice for each difference, and leaves them out of the comparison.
	WarnRuntime Runtime = "warn"
	// IgnoreRuntime accepts them without a check.
	IgnoreRuntime Runtime = "ignore"
)

// changedRuntime names the differences of the machine and of the programs. It leaves out programs in the job's
// directory, because the job may make them, and in components, because they were checked already.
func changedRuntime(id *trace.Identity, own trace.Runtime, paths *recording.Paths) (reasons []string) {
	was := id.Runtime
	if was.OS != own.OS || was.Arch != own.Arch {
		reasons = append(reasons,
			fmt.Sprintf("the trace was made on %s/%s, and this is %s/%s", graphic(was.OS), graphic(was.Arch), own.OS, own.Arch))
	}
	if was.Image != own.Image { // a replay never runs in a container
		reasons = append(reasons, fmt.Sprintf("the trace was made in a container of image %s, and this is none",
			graphic(was.Image)))
	}
	if is, then := own.Runner.Digest[trace.SHA256], was.Runner.Digest[trace.SHA256]; is != then {
		reasons = append(reasons, fmt.Sprintf("stepmux: its digest was %s (version %s) and is %s (version %s)",
			shown(then), graphic(was.Runner.Version), shown(is), own.Runner.Version))
	}
	seen := map[string]bool{}
	visit(id.Steps, nil, "", func(s *trace.Step, _ *pb.Step, name string) {
		if s.Exec == nil {
			return
		}
		for _, p := range []*trace.Program{s.Exec.Program, s.Exec.Interpreter} {
			if p == nil || p.Path.Masked || seen[p.Path.Value] {
				continue
			}
			seen[p.Path.Value] = true
			if why := changedProgram(p, paths); why != "" {
				reasons = append(reasons, fmt.Sprintf("step %s: %s", graphic(name), why))
			}
		}
	})
	return reasons
}

// changedProgram says how p has changed. It returns "" if it has not.
func changedProgram(p *trace.Program, paths *recording.Paths) string {
	was := p.Digest[trace.SHA256]
	path := paths.Expand(p.Path.Value)
	if was == "" || strings.HasPrefix(p.Path.Value, "@") || !filepath.IsAbs(path) {
		return ""
	}
	is, err := filesum.SHA256(os.OpenFile, path)
	switch {
	case err != nil:
		return fmt.Sprintf("the program %s, whose digest was %s: %v", shownPath(path), shown(was), err)
	case is != was:
		return fmt.Sprintf("the program %s: its digest was %s and is %s", shownPath(path), shown(was), shown(is))
	}
	return ""
}

// shown returns a digest for people.
func shown(digest string) string {
	if digest == "" {
		return "none"
	}
	return graphic("sha256:" + digest)
}

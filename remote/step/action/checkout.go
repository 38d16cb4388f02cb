package action

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/stepmux/stepmux/remote/step/engine"
)

// isCheckout reports whether the step uses actions/checkout.
func (s *step) isCheckout() bool {
	return strings.HasPrefix(strings.ToLower(s.uses), "actions/checkout@")
}

// maxNames bounds the names that hasOwnFiles reads.
const maxNames = 10_000

// hasOwnFiles reports whether a directory has files and is not the top of a repository, as an earlier checkout is.
func (x *running) hasOwnFiles(dir string) bool {
	f, err := x.call.Open(dir, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	names, _ := f.Readdirnames(maxNames)
	return len(names) > 0 && !slices.Contains(names, ".git")
}

// keepProject takes the place of actions/checkout in a directory that has the user's project. There, that action
// deletes local branches, uncommitted changes and ignored files or, for another repository, all files. keepProject
// reports whether the step is done. The error says that the step would delete other files.
func (x *running) keepProject() (done bool, err error) {
	with := map[string]string{}
	given, err := x.entries(x.spec.with, "with", x.env)
	if err != nil {
		return false, err
	}
	for _, w := range given {
		with[strings.ToLower(w.name)] = strings.TrimSpace(w.text)
	}
	dir, own := filepath.Clean(x.path(with["path"])), x.github["repository"].Text()
	other := with["repository"]
	switch {
	case dir == filepath.Clean(x.work()) && (other == "" || strings.EqualFold(other, own)):
	case dir == filepath.Clean(x.work()), x.hasOwnFiles(dir):
		return false, x.at(x.spec.line, fmt.Errorf("%.80s would delete all files in %s; give it a path that does not exist, "+
			"or run the job in an empty directory", x.spec.uses, dir))
	default:
		return false, nil // it has a directory of its own
	}
	addWarning(x.res, fmt.Sprintf("%.80s did not run: the job uses the files of the directory as they are", x.spec.uses))
	return true, x.begin(x.res, process{}, engine.Sequence)
}

package relay

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/socketdir"
)

// toolNames are the names by which the scripts of a GitLab manager call this program.
var toolNames = []string{"gitlab-runner", "step-runner"}

// tools is a private directory with links to this program by all toolNames, for the PATH of command lines. The first
// command line that can makes it. It is locked like the directory of a build: if the relay is killed, the next one
// removes it.
type tools struct {
	mu  sync.Mutex     // guards dir
	dir *socketdir.Dir // nil if it could not be made
}

// env returns the environment variable that names the directory, for a command line. It returns nothing if there is no
// directory.
func (t *tools) env(r *relay) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dir == nil {
		if err := t.make(r); err != nil {
			r.log.Printf("cannot put gitlab-runner and step-runner into the PATH of commands: %v", err)
			return nil
		}
	}
	return []string{wire.ToolsVar + "=" + t.dir.Path()}
}

func (t *tools) make(r *relay) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	program = strings.TrimSuffix(program, " (deleted)") // an update has put a new file there
	dir, err := socketdir.OpenNew(r.life, r.tempDir, "tools-")
	if err != nil {
		return err
	}
	for _, name := range toolNames {
		if err := os.Symlink(program, filepath.Join(dir.Path(), name)); err != nil {
			_ = dir.Remove(r.life) // the caller needs err
			return err
		}
	}
	t.dir = dir
	return nil
}

// remove removes the directory. The caller has made sure that no more commands start.
func (t *tools) remove(ctx context.Context) error {
	if t.dir == nil {
		return nil
	}
	return t.dir.Remove(ctx)
}

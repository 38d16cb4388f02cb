package whole

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/pipeline"
)

// earlier returns the result of a job in the run that is resumed. A job that opens has none: its builds have.
func (c *carrier) earlier(node int) (k kept, ok bool) {
	if c.anew || c.pipeline.Jobs[node].Open != nil {
		return k, false
	}
	return c.store.find(c.name(node))
}

// isAnew reports whether a job that this one needs, directly or by others, has run in this run. Then this one runs again
// too: as on GitHub, what it has made may depend on that.
func (c *carrier) isAnew(node int) bool {
	for from := range c.plan.Sources(node, pipeline.Control) {
		if c.done[from].anew {
			return true
		}
	}
	return false
}

// forget records that the jobs of p start again.
func (c *carrier) forget(p *Pipeline) {
	for _, j := range p.Jobs {
		if _, ran := c.store.find(c.prefix + j.Name); ran {
			c.store.keep(kept{Name: c.prefix + j.Name, Again: true})
		}
	}
}

// maxStamps bounds stampsFile, in bytes.
const maxStamps = 64 << 20

// stamps returns, by name, texts that change when files of the project do.
func stamps(cfg Config) map[string]string {
	all := make(map[string]string, len(cfg.Files))
	for _, name := range cfg.Files {
		if info, err := os.Lstat(filepath.Join(cfg.WorkDir, name)); err == nil {
			all[name] = fmt.Sprintf("%d %d %v", info.Size(), info.ModTime().UnixNano(), info.Mode())
		}
	}
	return all
}

// writeStamps keeps the stamps of the files of the project.
func (s *store) writeStamps(cfg Config) error {
	text, err := json.Marshal(stamps(cfg))
	if err != nil || len(text) > maxStamps {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, stampsFile), text, 0o600)
}

// mostNamed bounds the changed files that a line names.
const mostNamed = 5

// tellChanged says which files of the project have changed since the jobs ran that do not run again.
func (s *store) tellChanged(cfg Config) {
	var before map[string]string
	text, err := boundedfile.Read(filepath.Join(s.dir, stampsFile), maxStamps)
	if err == nil {
		err = json.Unmarshal(text, &before)
	}
	if err != nil {
		cfg.Say(fmt.Sprintf("files of the project may have changed since the jobs ran that do not run again: %v", err))
		return
	}
	var changed []string
	now := stamps(cfg)
	for name, stamp := range now {
		if before[name] != stamp {
			changed = append(changed, fmt.Sprintf("%.160q", name))
		}
	}
	for name := range before {
		if _, there := now[name]; !there {
			changed = append(changed, fmt.Sprintf("%.160q", name))
		}
	}
	if len(changed) == 0 {
		return
	}
	slices.Sort(changed)
	names := strings.Join(changed[:min(len(changed), mostNamed)], ", ")
	if more := len(changed) - mostNamed; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	cfg.Say("the jobs that ran earlier keep their results, and these files have changed or were written since: " + names +
		"; without --resume all jobs run")
}

package action

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// runNode runs a file of an action by node.
func (x *running) runNode(
	ctx context.Context, res *engine.StepResult, a *loaded, env map[string]string, file string,
) engine.Result {
	p := process{files: newFiles(x.call)}
	if err := x.begin(res, p, engine.Command); err != nil {
		return engine.Failed(err)
	}
	if err := p.files.create(); err != nil {
		return engine.Failed(err)
	}
	all := x.environment(p.files, env)
	all["GITHUB_ACTION_PATH"] = a.dir
	all["GITHUB_ACTION_REF"], all["GITHUB_ACTION_REPOSITORY"] = a.ref.GetRev(), a.ref.GetRepository()
	node, err := x.node(all, a.asks)
	if err != nil {
		return x.failed(a, err)
	}
	if !filepath.IsLocal(file) {
		return x.failed(a, fmt.Errorf("its program %.160q is not a file of the action", file))
	}
	program := filepath.Join(a.dir, file)
	if _, err := os.Stat(program); err != nil {
		return x.failed(a, fmt.Errorf("its program %.160q is missing; was it built?", file))
	}
	p.Argv, p.Dir = []string{node, program}, x.work()
	return x.exec(ctx, p, all)
}

// node returns the program node: that of the configuration, the newest of the tool cache, or that of PATH.
func (x *running) node(env map[string]string, asks string) (string, error) {
	if x.cfg.Node != "" {
		return x.cfg.Node, nil
	}
	if found := newestNode(x.toolCache()); found != "" {
		return found, nil
	}
	found, err := proc.Find("node", x.work(), lines(env))
	if err != nil {
		return "", errors.New("node was not found: install Node.js " + asks + " or newer, name it with --node or " +
			"STEP_RUNNER_NODE, or put it into the tool cache as node/<version>/" +
			strings.ToLower(architectures[runtime.GOARCH]))
	}
	return found, nil
}

// newestNode returns the newest node of a tool cache, or "".
func newestNode(cache string) string {
	dirs, _ := filepath.Glob(filepath.Join(cache, "node", "*", strings.ToLower(architectures[runtime.GOARCH])))
	best, newest := "", []int(nil)
	for _, dir := range dirs {
		program := filepath.Join(dir, "bin", "node")
		if _, err := os.Stat(program); err != nil {
			continue
		}
		if version := numbers(filepath.Base(filepath.Dir(dir))); best == "" || slices.Compare(version, newest) > 0 {
			best, newest = program, version
		}
	}
	return best
}

// numbers are the numbers of a version.
func numbers(version string) []int {
	var list []int
	for _, part := range strings.Split(strings.TrimPrefix(version, "v"), ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			break
		}
		list = append(list, n)
	}
	return list
}

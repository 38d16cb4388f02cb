package action

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/lazyregexp"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// runNode runs a file of an action by node.
func (x *running) runNode(
	ctx context.Context, res *engine.StepResult, env map[string]string, file string,
) engine.Result {
	a, p := x.spec.loaded, process{files: newFiles(x.call)}
	if err := x.begin(res, p, engine.Command); err != nil {
		return engine.Failed(err)
	}
	if err := p.files.create(); err != nil {
		return engine.Failed(err)
	}
	all := x.environment(p.files, env)
	setServices(x.call.Services(), all)
	all["GITHUB_ACTION_PATH"] = a.dir
	all["GITHUB_ACTION_REF"], all["GITHUB_ACTION_REPOSITORY"] = a.ref.GetRev(), a.ref.GetRepository()
	node, err := x.node(all, a.asks)
	if err != nil {
		return x.failed(err)
	}
	program := filepath.Join(a.dir, file)
	if !strings.HasPrefix(program, a.root+"/") { // it may be ../dist/index.js, beside the action's directory
		return x.failed(fmt.Errorf("the action's program %.160q is not a file of the action", file))
	}
	if _, err := os.Stat(program); err != nil {
		return x.failed(fmt.Errorf("the action's program %.160q is missing; was it built?", file))
	}
	p.Argv, p.Dir = []string{node, program}, x.work()
	version := x.askVersion(ctx, node, all)
	o := x.exec(ctx, p, all)
	if v := version(); v != "" {
		x.call.Version(res, v)
	}
	return o
}

// versionTimeout bounds "node --version".
const versionTimeout = 10 * time.Second

// nodeVersionText matches the output of "node --version".
var nodeVersionText = lazyregexp.New(`^v\d{1,4}\.\d{1,4}\.\d{1,4}[-+.0-9A-Za-z]{0,64}\n$`)

// askVersion asks the program node for its version, once a job, if the job is traced. The action runs beside it. The
// caller must call answer, which waits for the version; it may be empty.
func (x *running) askVersion(ctx context.Context, node string, env map[string]string) (answer func() string) {
	if !x.call.IsTraced() || x.asked[node] {
		return func() string { return "" }
	}
	if x.asked == nil {
		x.asked = map[string]bool{}
	}
	x.asked[node] = true
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	var out beginning
	done := make(chan struct{})
	go func() {
		defer close(done)
		// If this fails, the trace has only the digest.
		_ = x.call.Tidy(ctx, proc.Command{
			Argv: []string{node, "--version"}, Env: lines(env), Dir: x.work(), Visible: x.work(), Stdout: &out,
			Stderr: io.Discard,
		})
	}()
	return func() string {
		if x.call.Stopped() {
			cancel()
		}
		<-done
		cancel()
		if !nodeVersionText().Match(out.text) {
			return ""
		}
		return strings.TrimSpace(string(out.text))
	}
}

// node returns the path of the program node: that of the configuration, or the newest in the tool cache, or that of
// PATH.
func (x *running) node(env map[string]string, asks string) (string, error) {
	if x.cfg.Node != "" {
		return x.configured(x.cfg.Node, "--node", env)
	}
	if found := newestNode(x.toolCache()); found != "" {
		return found, nil
	}
	found, err := proc.Find("node", x.work(), lines(env))
	if err != nil {
		return "", &component.SystemError{Err: errors.New("node was not found: install Node.js " + asks + " or newer, " +
			"name it with --node or STEP_RUNNER_NODE, or put it into the tool cache as node/<version>/" +
			strings.ToLower(architecture()))}
	}
	return found, nil
}

// configured returns a program of the configuration, which a flag names. If there is no such program, the machine is at
// fault.
func (x *running) configured(program, flag string, env map[string]string) (string, error) {
	found, err := proc.Find(program, x.work(), lines(env))
	if err == nil {
		_, err = os.Stat(found)
	}
	if err != nil {
		return "", &component.SystemError{Err: fmt.Errorf("%w; install it, or name another with %s", err, flag)}
	}
	return program, nil
}

// newestNode returns the newest node of a tool cache, or "".
func newestNode(cache string) string {
	dirs, _ := filepath.Glob(filepath.Join(cache, "node", "*", strings.ToLower(architecture())))
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

// numbers returns the numbers of a version.
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

package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/pause"

	"golang.org/x/crypto/ssh"
)

// managerCleanBound is how long the VMs may take until they are clean after a manager was killed.
const managerCleanBound = 10 * time.Second

// startedFiles are more files than a program has open before it has started: the standard ones and two more.
const startedFiles = 5

// managerProcess is a stepmux run.
type managerProcess struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once it was waited for
}

// runProgram runs the round's builds by the program, in a process of its own.
func (r *rig) runProgram(ctx context.Context) error {
	inventory, err := r.writeInventory()
	if err != nil {
		return err
	}
	files := make([]string, len(r.builds))
	for i, b := range r.builds {
		files[i] = filepath.Join(r.dir, fmt.Sprintf("job-%d.yml", i))
		if err := os.WriteFile(files[i], b.Steps(b.ledger), 0o600); err != nil {
			return err
		}
	}
	p, said, err := r.startManager(ctx, inventory, files)
	if err != nil {
		return err
	}
	r.manage = p
	for _, b := range r.builds {
		b.reach(atConnect)
	}
	var watch, faults sync.WaitGroup
	watch.Go(r.watchLedgers)
	watch.Go(r.watchConnections)
	for _, f := range r.plan.Faults {
		faults.Go(func() {
			if f.Phase == atReady {
				f.Phase = atJob // no test says when
			}
			r.inject(f)
		})
	}
	if !await(buildBound, func() bool { return pause.Done(p.exited) }) {
		r.find(Finding{What: NoEnd, Text: fmt.Sprintf("stepmux run, not within %v", buildBound)})
		_ = p.cmd.Process.Kill() // what else
		<-p.exited
	}
	ending := time.Now()
	close(r.over)
	watch.Wait()
	faults.Wait()
	r.healAll()
	r.judgeManager(p, said())
	if r.plan.Kind == "kill-manager" || r.plan.Kind == "linger-kill" {
		r.requireCleanWithin(managerCleanBound+r.spec.linger, ending)
	}
	r.requireClean(ending)
	r.probeByProgram(ctx, inventory)
	r.requireClean(time.Now())
	return nil
}

// writeInventory writes the VMs as the program reads them.
func (r *rig) writeInventory() (string, error) {
	var s strings.Builder
	fmt.Fprintf(&s, "instances:\n")
	for _, m := range r.vms {
		fmt.Fprintf(&s, "  - id: %s\n    address: %s\n    user: %s\n    key: %s\n    capacity: %d\n    runner: %s\n"+
			"    temp_dir: %s\n    host_keys: [%q]\n",
			m.id, m.dialed(), r.who.user, r.who.file, len(r.builds), r.opts.VMsEnd, m.tmp,
			strings.TrimSpace(string(ssh.MarshalAuthorizedKey(m.hostKey.PublicKey()))))
	}
	path := filepath.Join(r.dir, "inventory.yml")
	return path, os.WriteFile(path, []byte(s.String()), 0o600)
}

// saidBuild is a build's end as the program tells it.
type saidBuild struct {
	Build    string `json:"build"`
	Status   string `json:"status"`
	Reason   string `json:"reason"`
	ExitCode int    `json:"exit_code"`
	Error    string `json:"error"`
	Cleanup  string `json:"cleanup_error"`
	Instance string `json:"instance"`
}

// startManager starts stepmux run. said waits for the last of its output and returns its account of each build, by
// its number.
func (r *rig) startManager(ctx context.Context, inventory string, files []string) (
	p *managerProcess, said func() map[int]saidBuild, err error,
) {
	args := append([]string{
		"run", "--inventory", inventory, "--ssh-config", "none", "--route", r.plan.Route,
		"--output", "json", "--linger", r.spec.linger.String(),
	}, files...)
	cmd := exec.CommandContext(ctx, r.opts.Program, args...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	p = &managerProcess{cmd: cmd, exited: make(chan struct{})}
	all := map[int]saidBuild{}
	var reading sync.WaitGroup
	reading.Go(func() { r.readEnds(stdout, all) })
	reading.Go(func() { r.readLogs(stderr) })
	go func() { // runProgram waits for it
		defer close(p.exited)
		reading.Wait()
		_ = cmd.Wait() // its output has the end of each build
	}()
	return p, func() map[int]saidBuild { <-p.exited; return all }, nil
}

// readEnds reads the program's output about builds as they end.
func (r *rig) readEnds(from io.Reader, to map[int]saidBuild) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var b saidBuild
		if json.Unmarshal(lines.Bytes(), &b) != nil || b.Build == "" {
			continue // the summary, or the last words of one that was killed
		}
		if i, ok := numberOf(b.Build); ok && i < len(r.builds) {
			to[i] = b
			r.builds[i].reach(atClose)
		}
	}
	_, _ = io.Copy(io.Discard, from)
}

// readLogs reads the builds' logs.
func (r *rig) readLogs(from io.Reader) {
	lines := bufio.NewReaderSize(from, 1<<20)
	for {
		text, err := lines.ReadString('\n')
		if id, rest, ok := strings.Cut(text, " | "); ok {
			if i, ok := numberOf(id); ok && i < len(r.builds) {
				_, _ = r.builds[i].sink.Write([]byte(rest))
			}
		}
		if err != nil {
			return
		}
	}
}

// numberOf returns the index of a build of the program's, whose ID ends in its number.
func numberOf(id string) (int, bool) {
	_, n, ok := strings.Cut(id, "-")
	i, err := strconv.Atoi(n)
	return i - 1, ok && err == nil && i > 0
}

// judgeManager judges the builds of a program that has ended.
func (r *rig) judgeManager(p *managerProcess, said map[int]saidBuild) {
	exit := p.cmd.ProcessState
	status, _ := exit.Sys().(syscall.WaitStatus)
	for i, b := range r.builds {
		got, told := said[i]
		if !told {
			refused := exit.ExitCode() > 0 && len(said) == 0 && !readLedger(b.ledger).Started // as a whole
			if !status.Signaled() && !refused {
				r.find(Finding{
					What: NoEnd, Build: b.ID,
					Text: fmt.Sprintf("the program ended with code %d and without a word of it", exit.ExitCode()),
				})
			}
			if log := b.sink.state(); log.Bad != "" && !status.Signaled() {
				r.find(Finding{What: WrongLog, Build: b.ID, Text: log.Bad})
			}
			continue
		}
		b.mu.Lock()
		b.vm = got.Instance
		b.canceled = r.plan.Kind == "end-manager"
		b.mu.Unlock()
		r.end(b, verdict{Reason: got.Reason, Code: got.ExitCode, Text: got.Error})
	}
	if status.Signaled() {
		return
	}
	failed := 0
	for _, got := range said {
		if got.Status != "success" {
			failed++
		}
	}
	if exit.ExitCode() == 0 && failed > 0 {
		r.find(Finding{What: FalseSuccess, Text: fmt.Sprintf("the program's exit code is 0, %d builds have failed", failed)})
	}
}

// probeByProgram is probe by the program.
func (r *rig) probeByProgram(ctx context.Context, inventory string) {
	ctx, cancel := context.WithTimeout(ctx, buildBound)
	defer cancel()
	job := filepath.Join(r.dir, "probe.yml")
	err := os.WriteFile(job, []byte("run:\n  - name: probe\n    script: exit 0\n"), 0o600)
	if err == nil {
		err = command(ctx, r.opts.Program, "run", "--inventory", inventory, "--ssh-config", "none", "--route", r.plan.Route,
			"--builds", strconv.Itoa(len(r.vms)), job)
	}
	if err != nil {
		r.find(Finding{What: Unusable, Text: err.Error()})
	}
}

func (r *rig) killManager(injection)      { r.signalManager(syscall.SIGKILL) }
func (r *rig) interruptManager(injection) { r.signalManager(syscall.SIGINT) }

func (r *rig) signalManager(sig syscall.Signal) {
	for _, m := range r.vms {
		r.harm(m)
	}
	r.counted(!pause.Done(r.manage.exited) && r.manage.cmd.Process.Signal(sig) == nil)
}

func (r *rig) pauseManager(f injection) {
	r.stopManager(between(20*time.Millisecond, harmlessPause, f.Size))
}

// pauseManagerLong stops the manager for longer than the VM's end waits for a sign of life.
func (r *rig) pauseManagerLong(f injection) {
	away := between(leastAway, r.mostAway(), f.Size)
	if r.manage == nil { // it is this process
		r.counted(pauseSelf(away) == nil)
		return
	}
	r.stopManager(away)
}

func (r *rig) stopManager(away time.Duration) {
	if pause.Done(r.manage.exited) {
		r.missed()
		return
	}
	_ = r.manage.cmd.Process.Signal(syscall.SIGSTOP) // it may end just now
	r.later(away, func() { _ = r.manage.cmd.Process.Signal(syscall.SIGCONT) })
	r.done()
}

// pauseSelf stops this process for a while.
func pauseSelf(d time.Duration) error {
	text := fmt.Sprintf("kill -STOP $PPID; sleep %.3f; kill -CONT $PPID", d.Seconds())
	return command(context.Background(), "sh", "-c", text)
}

func (r *rig) starveManager(injection) {
	for _, m := range r.vms {
		r.harm(m)
	}
	pid := r.manage.cmd.Process.Pid
	await(victimDeadline, func() bool { // a program in Go raises its limit as it starts
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		return err != nil || len(open) > startedFiles
	})
	r.counted(!pause.Done(r.manage.exited) && r.starve(pid))
}

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A round consists of two processes: a keeper, which adopts and finally ends all processes of the round, and the rig
// below it.
const (
	keeperArg = "__faults_keeper"
	roundArg  = "__faults_round"
)

// assignment is the input of a round's processes.
type assignment struct {
	Plan Plan
	Soak *Soak // instead of Plan, if it is not nil
	Opts Options
	Dir  string // for its files; the process that starts the round removes it
}

// reply is their output.
type reply struct {
	Result Result
	Soaked SoakResult
	Error  string
}

// Main runs a part of a round if this program was started as one, and then does not return. A program that calls
// StartRound must call Main first, and so must its TestMain.
func Main() {
	if len(os.Args) != 2 {
		return
	}
	switch os.Args[1] {
	case keeperArg:
		os.Exit(keep())
	case roundArg:
		os.Exit(round())
	}
}

// StartRound runs a round in processes of its own and waits for it. talk is their standard error. An error means that
// the round is not counted. When ctx ends, the round's processes are killed.
func StartRound(ctx context.Context, plan Plan, opts Options) (res Result, talk string, err error) {
	var errs strings.Builder
	r, err := start(ctx, assignment{Plan: plan, Opts: opts}, &errs)
	if err != nil {
		err = fmt.Errorf("round %d (%s, %s): %w", plan.Round, plan.Kind, plan.Route, err)
	}
	return r.Result, errs.String(), err
}

// start runs an assignment in processes of its own, which write their log to talk.
func start(ctx context.Context, a assignment, talk io.Writer) (r reply, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	// Not in the round's directory: the round's mounts outlive a killed round.
	// Not in /tmp either: isolation would hide it from the scripts, whose ledgers are there.
	cache, err := os.UserCacheDir()
	if err == nil {
		err = os.MkdirAll(cache, 0o700)
	}
	if err != nil {
		return r, err
	}
	if a.Dir, err = os.MkdirTemp(cache, "f"); err != nil {
		return r, err
	}
	defer os.RemoveAll(a.Dir)
	in, err := json.Marshal(a)
	if err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, self, keeperArg)
	var out strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(string(in)), &out, talk
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if a.Opts.Private {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET
	}
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // whose death Pdeathsig is about
		defer runtime.UnlockOSThread()
		ended <- cmd.Run()
	}()
	err = <-ended
	if decodeErr := json.Unmarshal([]byte(out.String()), &r); decodeErr != nil {
		if err == nil {
			err = decodeErr
		}
		return r, fmt.Errorf("the round ended without a result: %w", err)
	}
	if r.Error != "" {
		return r, errors.New(r.Error)
	}
	if err != nil { // it says so after its result: a data race
		return r, fmt.Errorf("the round ended badly: %w", err)
	}
	return r, nil
}

// CanBePrivate reports whether rounds can have namespaces of their own here, or why not.
func CanBePrivate(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("namespaces of a round's own need root")
	}
	for _, tool := range []string{"ip", "tc", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, "ip", "link", "add", "n0", "type", "veth", "peer", "name", "f0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make namespaces: %w: %s", err, out)
	}
	return nil
}

// keep is the keeper's life.
func keep() int {
	if os.Getpid() == 1 {
		if err := furnish(); err != nil {
			fmt.Fprintln(os.Stderr, "keeper:", err)
			return 1
		}
	} else if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "keeper:", err)
		return 1
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	pid, err := syscall.ForkExec("/proc/self/exe", []string{os.Args[0], roundArg}, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "keeper:", err)
		return 1
	}
	go func() {
		<-signals
		_ = syscall.Kill(pid, syscall.SIGKILL) // it is not reaped before its end is seen below
	}()
	code := 1
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		if err == syscall.EINTR { //nolint:errorlint // as the call returns it
			continue
		}
		if err != nil {
			return code
		}
		if got == pid {
			code = status.ExitStatus()
			endAll()
		}
	}
}

// endAll kills all processes below the keeper, including those that appear while it kills.
func endAll() {
	for {
		left := below(processes(), os.Getpid())
		alive := 0
		for _, p := range left {
			if p.state != "Z" {
				alive++
			}
		}
		if alive == 0 {
			return
		}
		signalAll(left, syscall.SIGKILL)
		runtime.Gosched()
	}
}

// furnish makes the keeper's namespaces fit to live in.
func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	return command(context.Background(), "ip", "link", "set", "lo", "up")
}

// round is the rig's life.
func round() int {
	var a assignment
	if err := json.NewDecoder(os.Stdin).Decode(&a); err != nil {
		fmt.Fprintln(os.Stderr, "round:", err)
		return 2
	}
	var r reply
	var err error
	if a.Soak != nil {
		r.Soaked, err = runSoak(context.Background(), *a.Soak, a.Dir, a.Opts)
	} else {
		r.Result, err = runRound(context.Background(), a.Plan, a.Dir, a.Opts)
	}
	if err != nil {
		r.Error = err.Error()
	}
	out, err := json.Marshal(r)
	if err != nil {
		fmt.Fprintln(os.Stderr, "round:", err)
		return 2
	}
	_, _ = os.Stdout.Write(out) // who does not read it learns nothing
	return 0
}

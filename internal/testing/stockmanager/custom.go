package stockmanager

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

const (
	// prepareTries is the number of attempts to prepare a job, and prepareInterval the pause between two of them.
	prepareTries, prepareInterval = 3, 3 * time.Second
	// buildFailure and systemFailure are the exit codes for a driver's failures, which it gets in its environment.
	buildFailure, systemFailure = 1, 2
)

// Custom is the part of config.toml for a runner with the custom executor. Zero times are GitLab Runner's defaults.
type Custom struct {
	BuildsDir, CacheDir                             string
	ConfigExec, PrepareExec, RunExec, CleanupExec   string
	ConfigArgs, PrepareArgs, RunArgs, CleanupArgs   []string
	ConfigTimeout, PrepareTimeout, CleanupTimeout   time.Duration
	GracefulTimeout, ForceTimeout, PreparationPause time.Duration
	// Temp is the parent of the directories of jobs. Required.
	Temp string
	// Env is added to the environment of the driver's processes, which is this process's.
	Env []string
	// Log gets the output of cleanup, which the real manager writes to the runner's own log. May be nil.
	Log io.Writer
}

// ParseCustom reads the keys of a runner with the custom executor in a config.toml whose values stand on one line.
func ParseCustom(text string) (Custom, error) {
	c := Custom{}
	texts := map[string]*string{
		"builds_dir": &c.BuildsDir, "cache_dir": &c.CacheDir, "config_exec": &c.ConfigExec, "prepare_exec": &c.PrepareExec,
		"run_exec": &c.RunExec, "cleanup_exec": &c.CleanupExec,
	}
	lists := map[string]*[]string{
		"config_args": &c.ConfigArgs, "prepare_args": &c.PrepareArgs, "run_args": &c.RunArgs, "cleanup_args": &c.CleanupArgs,
	}
	times := map[string]*time.Duration{
		"config_exec_timeout": &c.ConfigTimeout, "prepare_exec_timeout": &c.PrepareTimeout,
		"cleanup_exec_timeout": &c.CleanupTimeout, "graceful_kill_timeout": &c.GracefulTimeout,
		"force_kill_timeout": &c.ForceTimeout,
	}
	others := []string{"concurrent", "name", "url", "token", "executor", "shell", "limit", "request_concurrency"}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, "=")
		key = strings.TrimSpace(key)
		if !ok || strings.HasPrefix(key, "#") || strings.HasPrefix(key, "[") {
			continue
		}
		value, _, _ = strings.Cut(value, " #")
		value = strings.TrimSpace(value)
		var err error
		switch {
		case texts[key] != nil:
			err = json.Unmarshal([]byte(value), texts[key])
		case lists[key] != nil:
			err = json.Unmarshal([]byte(value), lists[key])
		case times[key] != nil:
			n := 0
			n, err = strconv.Atoi(value)
			*times[key] = time.Duration(n) * time.Second
		default:
			if !slices.Contains(others, key) {
				err = errors.New("unknown key")
			}
		}
		if err != nil {
			return c, fmt.Errorf("config.toml: %s: %w", key, err)
		}
	}
	return c, nil
}

// CustomJob is a job for a Custom.
type CustomJob struct {
	ID int64
	// Timeout is a part of the information about the runner. It is not enforced here.
	Timeout   time.Duration
	Variables []*runnerproto.Variable
	Stages    []CustomStage
	// Log receives the job's log. It is not used after Execute.
	Log io.Writer
}

// CustomStage is one script.
type CustomStage struct {
	Name   string
	Script string // without the common beginning of all scripts
	// Always makes it run after a failure, too.
	Always bool
}

// CustomResult is the end of a job.
type CustomResult struct {
	// Reason is empty after a success, otherwise script_failure or runner_system_failure.
	Reason   string
	ExitCode int // of a script_failure
	Message  string
}

// buildError is a failure of the job's script, not of the system.
type buildError struct {
	code  int
	stage string
}

func (e *buildError) Error() string { return fmt.Sprintf("%s: exit code %d", e.stage, e.code) }

// customRun is a job under way.
type customRun struct {
	*Custom
	job  CustomJob
	log  *buildLog
	dir  string
	vars map[string]string // from the output of config
}

// Execute runs a job: config and prepare, at most three times, the stages, and cleanup. When the job's ctx ends, the
// driver's process group gets SIGTERM and then SIGKILL, and cleanup still runs.
func (c *Custom) Execute(ctx context.Context, job CustomJob) CustomResult {
	log := &buildLog{w: cmp.Or[io.Writer](job.Log, io.Discard)}
	defer log.detach()
	r := &customRun{Custom: c, job: job, log: log}
	var err error
	for try := range prepareTries {
		if try > 0 {
			_ = pause.For(ctx, cmp.Or(c.PreparationPause, prepareInterval)) // prepare notices the end of ctx
		}
		if err = r.prepare(ctx); err == nil {
			break
		}
		fmt.Fprintf(log, "ERROR: Preparation failed: %v\n", err)
		r.cleanup() //nolint:contextcheck // also for a job that was cancelled
		if failed := (*buildError)(nil); errors.As(err, &failed) || ctx.Err() != nil {
			return resultOf(err)
		}
	}
	if err != nil {
		return resultOf(err)
	}
	defer r.cleanup() //nolint:contextcheck // also for a job that was cancelled
	for _, s := range job.Stages {
		if err != nil && !s.Always {
			continue
		}
		if stageErr := r.stage(ctx, s); err == nil {
			err = stageErr
		}
	}
	return resultOf(err)
}

func resultOf(err error) CustomResult {
	failed := (*buildError)(nil)
	switch {
	case err == nil:
		return CustomResult{}
	case errors.As(err, &failed):
		return CustomResult{"script_failure", failed.code, err.Error()}
	default:
		return CustomResult{"runner_system_failure", 0, err.Error()}
	}
}

// prepare makes the job's directory and calls config and prepare.
func (r *customRun) prepare(ctx context.Context) (err error) {
	if r.dir, err = os.MkdirTemp(r.Temp, "custom-executor"); err != nil {
		return err
	}
	r.vars = nil
	text, err := json.Marshal(map[string]any{
		"id": r.job.ID, "token": "glcbt-64_secret", "runner_info": map[string]any{"timeout": int(r.job.Timeout.Seconds())},
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(r.dir, "response.json"), text, 0o600)
	}
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := r.call(ctx, r.ConfigTimeout, &out, r.log, "config", r.ConfigExec, r.ConfigArgs); err != nil {
		return err
	}
	var config struct {
		Builds string            `json:"builds_dir"`
		Cache  string            `json:"cache_dir"`
		Shared bool              `json:"builds_dir_is_shared"`
		Env    map[string]string `json:"job_env"`
		Driver struct{ Name, Version string }
	}
	if err := json.Unmarshal(out.Bytes(), &config); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if config.Builds == "" && r.BuildsDir == "" || config.Cache == "" && r.CacheDir == "" || !config.Shared {
		return errors.New("config: there is no builds_dir or no cache_dir, or builds_dir_is_shared is false")
	}
	r.vars = config.Env
	fmt.Fprintf(r.log, "Using Custom executor with driver %s %s...\n", config.Driver.Name, config.Driver.Version)
	return r.call(ctx, r.PrepareTimeout, r.log, r.log, "prepare", r.PrepareExec, r.PrepareArgs)
}

// stage runs the script of a stage.
func (r *customRun) stage(ctx context.Context, s CustomStage) error {
	dir, err := os.MkdirTemp(r.dir, "script")
	if err != nil {
		return err
	}
	text := script(Job{BuildDir: filepath.Join(r.BuildsDir, strconv.FormatInt(r.job.ID, 10)), Variables: r.job.Variables},
		stage{s.Name, s.Script + "\n"})
	path := filepath.Join(dir, "script")
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil { // a script
		return err
	}
	args := append(r.RunArgs[:len(r.RunArgs):len(r.RunArgs)], path, s.Name)
	return r.call(ctx, 0, r.log, r.log, s.Name, r.RunExec, args)
}

// cleanup calls cleanup and removes the job's directory.
func (r *customRun) cleanup() {
	log := cmp.Or[io.Writer](r.Log, io.Discard)
	err := r.call(context.Background(), r.CleanupTimeout, log, log, "cleanup", r.CleanupExec, r.CleanupArgs)
	if err != nil {
		fmt.Fprintf(log, "Cleanup script failed: %v\n", err)
	}
	_ = os.RemoveAll(r.dir) // of the test's temporary directory
}

// call calls the driver and returns the meaning of its exit code.
func (r *customRun) call(
	ctx context.Context, timeout time.Duration, stdout, stderr io.Writer, stage, program string, args []string,
) error {
	if timeout <= 0 {
		timeout = time.Hour
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	codeFile := filepath.Join(r.dir, "build_exit_code")
	cmd := exec.Command(program, args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), r.Env...)
	cmd.Env = append(cmd.Env, "TMPDIR="+r.dir, "BUILD_FAILURE_EXIT_CODE="+strconv.Itoa(buildFailure),
		"SYSTEM_FAILURE_EXIT_CODE="+strconv.Itoa(systemFailure), "BUILD_EXIT_CODE_FILE="+codeFile,
		"JOB_RESPONSE_FILE="+filepath.Join(r.dir, "response.json"))
	for name, value := range r.vars {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	for _, v := range r.job.Variables {
		cmd.Env = append(cmd.Env, "CUSTOM_ENV_"+v.GetKey()+"="+v.GetValue())
	}
	cmd.Env = append(cmd.Env, "CUSTOM_ENV_CI_JOB_SERVICES=")
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err := runGroup(ctx, cmd, cmp.Or(r.GracefulTimeout, 600*time.Second), cmp.Or(r.ForceTimeout, 10*time.Second))
	exit := (*exec.ExitError)(nil)
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return fmt.Errorf("%s: %w", stage, err)
	case exit.ExitCode() == systemFailure:
		return fmt.Errorf("%s: system failure", stage)
	case exit.ExitCode() != buildFailure:
		return fmt.Errorf("%s: unknown Custom executor executable exit code %d", stage, exit.ExitCode())
	}
	text, err := os.ReadFile(codeFile)
	if errors.Is(err, os.ErrNotExist) {
		return &buildError{1, stage}
	}
	first, _, _ := strings.Cut(string(text), "\n")
	code, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil {
		return fmt.Errorf("%s: unknown exit code: %w", stage, err)
	}
	return &buildError{code, stage}
}

// runGroup runs a command. When ctx ends, its process group gets SIGTERM and, after graceful, SIGKILL. After force,
// runGroup returns without waiting any longer.
func runGroup(ctx context.Context, cmd *exec.Cmd, graceful, force time.Duration) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	var killing sync.WaitGroup
	defer killing.Wait()
	killing.Go(func() {
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		for _, step := range []struct {
			signal syscall.Signal
			wait   time.Duration
		}{{syscall.SIGTERM, graceful}, {syscall.SIGKILL, force}} {
			_ = syscall.Kill(-cmd.Process.Pid, step.signal) // it may have ended
			timer := time.NewTimer(step.wait)
			select {
			case <-ended:
				timer.Stop()
				return
			case <-timer.C:
			}
		}
	})
	err := cmd.Wait()
	close(ended)
	return err
}

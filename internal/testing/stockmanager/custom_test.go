package stockmanager_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/artifactstest"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/testing/stockmanager"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

// doors is a stepmux manager, its VMs with stock sshds, and a runner with the custom executor that uses it.
type doors struct {
	*stockmanager.Custom
	t       *testing.T
	program string // stepmux
	servers []*sshtest.Server
	temps   []string // of the VMs
	slots   int      // of each VM
	dir     string
	socket  string
	args    []string
	cmd     *exec.Cmd
	stderr  sshtest.Log
}

// newDoors starts VMs, each with some slots, and a manager.
func newDoors(t *testing.T, vms, slots int, args ...string) *doors {
	t.Helper()
	d := &doors{t: t, slots: slots, dir: t.TempDir(), program: runnertest.Manager(t)}
	d.socket = filepath.Join(sshtest.SocketDir(t), "m.sock")
	inventory := "instances:\n"
	for i := range vms {
		s, temp := sshtest.OpenSSH(t), remotetest.ShortTemp(t)
		d.servers, d.temps = append(d.servers, s), append(d.temps, temp)
		inventory += fmt.Sprintf("  - {id: vm-%d, address: %q, user: %s, key: %s, capacity: %d, runner: %s, temp_dir: %s, "+
			"labels: {number: %q}, host_keys: [%q]}\n", i, s.Addr, s.User, s.IdentityFile, slots, runnertest.Command(t)[0],
			temp, strconv.Itoa(i), strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.HostKey))))
	}
	file := filepath.Join(d.dir, "fleet.yml")
	require.NoError(t, os.WriteFile(file, []byte(inventory), 0o600))
	d.args = append([]string{
		"manager", "--state", filepath.Join(d.dir, "state"), "--inventory", file, "--socket", d.socket,
		"--log-level", "info",
	}, args...)
	d.start()
	t.Cleanup(func() {
		d.stop(unix.SIGTERM)
		if t.Failed() {
			t.Logf("the log of the managers:\n%s", &d.stderr)
		}
	})
	d.Custom = d.runner()
	return d
}

// runner returns the runner of the page docs/gitlab.md.
func (d *doors) runner() *stockmanager.Custom {
	d.t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "gitlab.md"))
	require.NoError(d.t, err)
	block := regexp.MustCompile("(?ms)^```toml\n([^`]*executor += \"custom\".*?)^```$").FindSubmatch(page)
	require.NotNil(d.t, block, "the page has a config.toml for the custom executor")
	c, err := stockmanager.ParseCustom(string(block[1]))
	require.NoError(d.t, err)
	for _, program := range []*string{&c.ConfigExec, &c.PrepareExec, &c.RunExec, &c.CleanupExec} {
		require.Equal(d.t, "/usr/local/bin/stepmux-custom-executor", *program)
		*program = runnertest.CustomExecutor(d.t)
	}
	c.BuildsDir, c.CacheDir = filepath.Join(d.dir, "builds"), filepath.Join(d.dir, "cache")
	c.Temp, c.PreparationPause, c.Log = d.t.TempDir(), 10*time.Millisecond, &d.stderr
	c.Env = []string{"STEPMUX_MANAGER=" + d.socket}
	return &c
}

// start starts the manager and waits until it listens.
func (d *doors) start() {
	d.t.Helper()
	d.cmd = exec.Command(d.program, d.args...)
	d.cmd.Stderr = &d.stderr
	runnertest.StartManager(d.t, d.cmd, sshtest.Bound, &d.stderr)
}

// stop ends the manager by a signal.
func (d *doors) stop(signal os.Signal) {
	_ = d.cmd.Process.Signal(signal) // it may have ended
	_ = d.cmd.Wait()
}

// status returns the builds on each VM.
func (d *doors) status() map[string]int {
	d.t.Helper()
	out, err := exec.Command(d.program, "ps", "--output", "json", "--manager", d.socket).Output()
	require.NoError(d.t, err)
	var all struct {
		Instances []struct {
			ID     string
			Builds []any
		}
	}
	require.NoError(d.t, json.Unmarshal(out, &all), "%s", out)
	found := map[string]int{}
	for _, vm := range all.Instances {
		found[vm.ID] = len(vm.Builds)
	}
	return found
}

// requireFree waits until every slot is back.
func (d *doors) requireFree() {
	d.t.Helper()
	require.Eventually(d.t, func() bool {
		for _, n := range d.status() {
			if n > 0 {
				return false
			}
		}
		return true
	}, sshtest.Bound, 20*time.Millisecond, "a slot is not back")
}

// job returns a job with the stages of a small one.
func (d *doors) job(id int64, script string) stockmanager.CustomJob {
	return stockmanager.CustomJob{
		ID: id, Timeout: time.Hour, Log: new(sshtest.Log),
		Variables: []*runnerproto.Variable{{Key: "CI_JOB_ID", Value: strconv.FormatInt(id, 10)}},
		Stages: []stockmanager.CustomStage{
			{Name: "prepare_script", Script: `echo "Running on $(hostname)..."`},
			{Name: "get_sources", Script: "mkdir -p sources"},
			{Name: "build_script", Script: script},
			{Name: "after_script", Script: "echo after $CI_JOB_ID", Always: true},
			{Name: "cleanup_file_variables", Script: "rm -rf sources", Always: true},
		},
	}
}

// run runs a job and returns its result and log.
func (d *doors) run(job stockmanager.CustomJob) (stockmanager.CustomResult, string) {
	d.t.Helper()
	return d.Execute(sshtest.Within(d.t), job), fmt.Sprint(job.Log)
}

// begin runs a job in a goroutine, and returns when its log has a text.
func (d *doors) begin(job stockmanager.CustomJob, text string) (wait func() stockmanager.CustomResult, cancel func()) {
	d.t.Helper()
	ctx, cancel := context.WithCancel(sshtest.Within(d.t))
	var result stockmanager.CustomResult
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		result = d.Execute(ctx, job)
	}()
	d.t.Cleanup(func() {
		cancel()
		<-ended
	})
	job.Log.(*sshtest.Log).Await(d.t, text)
	return func() stockmanager.CustomResult {
		<-ended
		return result
	}, cancel
}

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// make prove WHAT=custom-executor does more of it: STEPMUX_CUSTOM_JOBS.
func TestJobsOfACustomExecutorShareOneConnectionPerVM(t *testing.T) {
	jobs, atOnce := number(t, "STEPMUX_CUSTOM_JOBS", 24), number(t, "STEPMUX_CUSTOM_AT_ONCE", 8)
	vms := number(t, "STEPMUX_CUSTOM_VMS", 2)
	d := newDoors(t, vms, (atOnce+vms-1)/vms)
	script := func(i int) string { return fmt.Sprintf("echo job %d; test -d sources; exit %d", i, i%4*7) }
	began := time.Now()
	runAll(jobs, atOnce, func(i int) {
		result, log := d.run(d.job(int64(i+1), script(i)))
		want := stockmanager.CustomResult{}
		if code := i % 4 * 7; code > 0 {
			want = stockmanager.CustomResult{
				Reason: "script_failure", ExitCode: code, Message: fmt.Sprintf("build_script: exit code %d", code),
			}
		}
		if result != want || !strings.Contains(log, fmt.Sprintf("\njob %d\nafter %d\n", i, i+1)) {
			t.Errorf("job %d: %+v; log: %s", i, result, log)
		}
	})
	took := time.Since(began)
	d.requireFree()
	for i, s := range d.servers {
		require.Equal(t, 1, s.TotalConns(), "connections to vm-%d", i)
	}
	require.Empty(t, remotetest.Names(t, d.Temp))
	t.Logf("%d jobs, %d at once, on %d VMs: %v", jobs, atOnce, vms, took.Round(time.Millisecond))
}

// runAll calls do for 0 to n-1, some at once.
func runAll(n, atOnce int, do func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range atOnce {
		wg.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

func TestACustomExecutorKeepsTheContract(t *testing.T) {
	d := newDoors(t, 1, 2)
	t.Run("the exit code is that of the stage", func(t *testing.T) {
		job := d.job(1, "exit 42")
		job.Stages = append(job.Stages, stockmanager.CustomStage{
			Name: "upload_artifacts_on_failure", Script: "exit 1", Always: true,
		})
		result, _ := d.run(job)
		require.Equal(t, "build_script: exit code 42", result.Message)
		job = d.job(2, "kill -9 $$")
		result, _ = d.run(job)
		require.Equal(t, 137, result.ExitCode)
	})
	t.Run("run, artifacts and caches find our programs", func(t *testing.T) {
		server := artifactstest.New(t)
		job := d.job(3, `echo hello >file
gitlab-runner artifacts-uploader --url `+server.URL+` --token `+artifactstest.Token+` --id 3 --path file --timeout 1m
gitlab-runner cache-archiver --file `+filepath.Join(d.dir, "cache.zip")+` --path file --timeout 1
rm file
gitlab-runner cache-extractor --file `+filepath.Join(d.dir, "cache.zip")+` --timeout 1
test "$(cat file)" = hello
export STEPS='[{"name":"one","script":"echo steps of ${{ vars.CI_JOB_ID }}; exit 9"}]'
step-runner ci`)
		result, log := d.run(job)
		require.Equal(t, 9, result.ExitCode, "%+v %s", result, log)
		require.Contains(t, log, "\nRunning step \"one\"\n") // on the other stream
		require.Contains(t, log, "\nsteps of 3\n")
		require.Len(t, server.Uploads(), 1)
	})
	t.Run("a cancelled script gets SIGTERM, and what comes after is in the log", func(t *testing.T) {
		job := d.job(4, "trap 'echo cleaned up; exit 3' TERM\necho up\nwhile :; do sleep 0.01; done")
		wait, cancel := d.begin(job, "\nup\n")
		cancel()
		result := wait()
		require.Contains(t, fmt.Sprint(job.Log), "cleaned up\n")
		require.Equal(t, "script_failure", result.Reason)
		d.requireFree()
	})
	t.Run("a job that waits says so", func(t *testing.T) {
		gate, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "go"))
		var waits []func() stockmanager.CustomResult
		for i := range 2 {
			wait, _ := d.begin(d.job(int64(10+i), "echo up; "+gate), "\nup\n")
			waits = append(waits, wait)
		}
		job := d.job(12, "exit 5")
		wait, _ := d.begin(job, "Waiting for a slot, 0 ahead\n")
		open()
		for _, wait := range waits {
			require.Equal(t, stockmanager.CustomResult{}, wait())
		}
		require.Equal(t, 5, wait().ExitCode)
	})
	t.Run("a label that no VM has is the job's fault", func(t *testing.T) {
		c := *d.Custom
		c.PrepareArgs = append(c.PrepareArgs[:len(c.PrepareArgs):len(c.PrepareArgs)], "--label", "number=7")
		job := d.job(13, "")
		result := c.Execute(sshtest.Within(t), job)
		require.Equal(t, "script_failure", result.Reason, "%s", job.Log)
		require.Equal(t, 1, strings.Count(fmt.Sprint(job.Log), `there is no instance with the labels "number=7"`))
	})
	t.Run("variables of the job that lie are not believed", func(t *testing.T) {
		gate, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "go"))
		lied := filepath.Join(t.TempDir(), "lied")
		other, _ := d.begin(d.job(20, "echo up; "+gate), "\nup\n")
		leases, err := exec.Command(d.program, "ps", "--output", "json", "--manager", d.socket).Output()
		require.NoError(t, err)
		lease := regexp.MustCompile("lease-[a-z0-9]+").Find(leases)
		require.NotNil(t, lease, "%s", leases)
		job := d.job(21, "exit 3")
		for name, value := range map[string]string{
			"STEPMUX_LEASE": string(lease), "STEPMUX_MANAGER": "/none", "CI_JOB_ID": "20", "CI_JOB_TIMEOUT": "-1",
			"JOB_RESPONSE_FILE": "/none", "BUILD_EXIT_CODE_FILE": lied, "BUILD_FAILURE_EXIT_CODE": "0",
			"SYSTEM_FAILURE_EXIT_CODE": "0", "TMPDIR": "/none", "LARGE": strings.Repeat("x", 100_000),
		} {
			job.Variables = append(job.Variables, &runnerproto.Variable{Key: name, Value: value})
		}
		result, log := d.run(job)
		require.Equal(t, "build_script: exit code 3", result.Message, log)
		require.Contains(t, log, "Job 21 has a slot on vm-0\n")
		require.NoFileExists(t, lied)
		require.Equal(t, map[string]int{"vm-0": 1}, d.status(), "the other job has its slot")
		open()
		require.Equal(t, stockmanager.CustomResult{}, other())
	})
	t.Run("a bad file with the job is the system's fault", func(t *testing.T) {
		large := filepath.Join(t.TempDir(), "large")
		require.NoError(t, os.WriteFile(large, nil, 0o600))
		require.NoError(t, os.Truncate(large, 65<<20))
		for file, want := range map[string]string{"/none": "no such file", large: "more than", "/proc/self/comm": "invalid"} {
			cmd := exec.Command(d.PrepareExec, d.PrepareArgs...)
			cmd.Env = append(os.Environ(), "STEPMUX_MANAGER="+d.socket, "STEPMUX_LEASE=lease-x", "JOB_RESPONSE_FILE="+file,
				"SYSTEM_FAILURE_EXIT_CODE=77", "BUILD_FAILURE_EXIT_CODE=junk")
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			require.Equal(t, 77, cmd.ProcessState.ExitCode())
			require.Contains(t, string(out), want)
		}
	})
	d.requireFree()
	require.Equal(t, 1, d.servers[0].TotalConns())
}

// The runner is a process of its own, which is killed without a cleanup.
func TestARunnerThatIsKilledGivesItsSlotsBack(t *testing.T) {
	d := newDoors(t, 1, 1)
	plain := *d.Custom
	plain.Log = nil
	config, err := json.Marshal(plain)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "runner.json")
	require.NoError(t, os.WriteFile(file, config, 0o600))
	for _, script := range []string{"echo up; sleep 600", "echo between"} {
		cmd := remotetest.Role(t.Context(), "custom", file, script)
		var log sshtest.Log
		cmd.Stdout, cmd.Stderr = &log, &log
		require.NoError(t, cmd.Start())
		text := "\nup\n"
		if script == "echo between" {
			text = "all stages have ended\n"
		}
		log.Await(t, text)
		require.Equal(t, map[string]int{"vm-0": 1}, d.status())
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
		d.requireFree()
	}
	result, _ := d.run(d.job(2, "exit 4"))
	require.Equal(t, 4, result.ExitCode)
}

// custom runs a job for the test above, and says when its stages have ended.
func custom(args []string) error {
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	c := &stockmanager.Custom{}
	if err := json.Unmarshal(text, c); err != nil {
		return err
	}
	c.CleanupExec, c.CleanupArgs = "sh", []string{"-c", "while kill -0 $PPID; do sleep 0.05; done"} // until it is killed
	job := (&doors{}).job(1, args[1])
	job.Log = os.Stdout
	job.Stages = append(job.Stages, stockmanager.CustomStage{Name: "last", Script: "echo all stages have ended"})
	c.Execute(context.Background(), job)
	return nil
}

func TestAJobBetweenStagesOutlivesItsManager(t *testing.T) {
	d := newDoors(t, 2, 1)
	gate, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "go"))
	between := d.job(1, "exit 6")
	// The driver itself waits, before it starts the stage.
	c := *d.Custom
	c.RunExec, c.RunArgs = "sh", []string{"-c", `program=$0
case $3 in build_script) echo "at the gate"; ` + gate + ` ;; esac
exec "$program" "$@"`, d.RunExec}
	c.RunArgs = append(c.RunArgs, d.RunArgs...)
	ended := make(chan stockmanager.CustomResult, 1)
	go func() { ended <- c.Execute(context.Background(), between) }()
	between.Log.(*sshtest.Log).Await(t, "at the gate\n")
	during := d.job(2, "echo up; sleep 600")
	wait, _ := d.begin(during, "\nup\n")

	d.stop(unix.SIGKILL)
	during.Log.(*sshtest.Log).Await(t, "the script is lost")
	d.start()
	result := wait()
	require.Equal(t, "runner_system_failure", result.Reason)
	open()
	result = <-ended
	require.Equal(t, 6, result.ExitCode, "%+v %s", result, between.Log)
	d.requireFree()

	// A manager that is away for a while: the job waits for it.
	d.stop(unix.SIGTERM)
	waiting := d.job(3, "exit 8")
	later := make(chan stockmanager.CustomResult, 1)
	go func() { later <- d.Execute(context.Background(), waiting) }()
	require.Never(t, func() bool { return len(later) > 0 }, 50*time.Millisecond, time.Millisecond)
	d.start()
	result = <-later
	require.Equal(t, 8, result.ExitCode, "%+v %s", result, waiting.Log)
	d.requireFree()
}

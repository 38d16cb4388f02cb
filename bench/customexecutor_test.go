package bench

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/testing/stockmanager"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

// executorJobs is how many jobs run. STEPMUX_CUSTOM_JOBS is another number.
const executorJobs, shortExecutorJobs = 48, 8

// BenchmarkCustomExecutor measures jobs of GitLab Runner's custom executor, 32 at once on four VMs: by stepmux, and by
// a driver that logs in for each stage.
func BenchmarkCustomExecutor(b *testing.B) {
	jobs, err := strconv.Atoi(cmp.Or(os.Getenv("STEPMUX_CUSTOM_JOBS"), strconv.Itoa(executorJobs)))
	require.NoError(b, err)
	f := &executorFleet{b: b, jobs: jobs, atOnce: 32, dir: b.TempDir()}
	vms := 4
	if testing.Short() {
		f.jobs, f.atOnce, vms = shortExecutorJobs, shortExecutorJobs, 2
	}
	for range vms {
		f.vms = append(f.vms, newVM(b))
	}
	all := []candidate{
		{name: "stepmux", run: func(r *results) error { return f.byManager(r, "stepmux") }},
		{name: "ssh", run: func(r *results) error { return f.bySSH(r, "ssh") }},
	}
	if _, err := exec.LookPath("ssh"); err != nil {
		missing(b, "ssh", err)
		all = all[:1]
	}
	r := inTurns(b, once, all)
	for _, name := range names(all) {
		r.median(name, name+"-ms")
		r.median(name+"-logins", name+"-logins")
	}
	r.ratio("stepmux", "ssh", "ssh")
}

// executorFleet has VMs with stock sshds, and runs jobs there.
type executorFleet struct {
	b            *testing.B
	vms          []*vm
	jobs, atOnce int
	dir          string
}

// byManager runs the jobs by a stepmux manager, which has no connection before them.
func (f *executorFleet) byManager(r *results, name string) error {
	var inventory strings.Builder
	inventory.WriteString("instances:\n")
	for i, v := range f.vms {
		fmt.Fprintf(&inventory, "  - {id: vm-%d, address: %q, user: %s, key: %s, capacity: %d, runner: %s, temp_dir: %s, "+
			"host_keys: [%q]}\n", i, v.Addr, v.User, v.IdentityFile, f.atOnce/len(f.vms), stepmux(f.b), v.tmp,
			strings.TrimSpace(string(ssh.MarshalAuthorizedKey(v.HostKey))))
	}
	file, socket := filepath.Join(f.dir, "fleet.yml"), filepath.Join(f.vms[0].tmp, "m.sock")
	if err := os.WriteFile(file, []byte(inventory.String()), 0o600); err != nil {
		return err
	}
	var log sshtest.Log
	cmd := exec.Command(runnertest.Manager(f.b), "manager", "--inventory", file, "--socket", socket, "--state",
		f.b.TempDir())
	cmd.Stderr = &log
	runnertest.StartManager(f.b, cmd, sshtest.Bound, &log)
	defer func() {
		_, _ = cmd.Process.Signal(os.Interrupt), cmd.Wait() // it has done its work
	}()
	program := runnertest.CustomExecutor(f.b)
	return f.run(r, name, &stockmanager.Custom{
		ConfigExec: program, PrepareExec: program, RunExec: program, CleanupExec: program,
		ConfigArgs: []string{"config"}, PrepareArgs: []string{"prepare"}, RunArgs: []string{"run"},
		CleanupArgs: []string{"cleanup"}, Env: []string{"STEPMUX_MANAGER=" + socket},
	})
}

// driver is a driver as they are usually written: it logs in for each stage. Its VMs are vm-0, vm-1 and so on.
const driver = `case $1 in
config) echo '{"builds_dir_is_shared": true, "driver": {"name": "ssh", "version": "1"}}' ;;
run)
  ssh -F %[1]s "vm-$((CUSTOM_ENV_CI_JOB_ID %% %[2]d))" bash <"$2"
  code=$?
  case $code in 0) ;; 255) exit "$SYSTEM_FAILURE_EXIT_CODE" ;; *)
    echo $code >"$BUILD_EXIT_CODE_FILE"
    exit "$BUILD_FAILURE_EXIT_CODE"
  esac
esac
`

// bySSH runs the jobs by such a driver.
func (f *executorFleet) bySSH(r *results, name string) error {
	var hosts strings.Builder
	for i, v := range f.vms {
		host, port, _ := strings.Cut(v.Addr, ":")
		fmt.Fprintf(&hosts, "Host vm-%d\n  HostName %s\n  Port %s\n  User %s\n  IdentityFile %s\n  UserKnownHostsFile %s\n"+
			"  BatchMode yes\n", i, host, port, v.User, v.IdentityFile, v.KnownHosts)
	}
	config, script := filepath.Join(f.dir, "ssh_config"), filepath.Join(f.dir, "driver.sh")
	if err := os.WriteFile(config, []byte(hosts.String()), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(script, fmt.Appendf(nil, driver, config, len(f.vms)), 0o600); err != nil {
		return err
	}
	return f.run(r, name, &stockmanager.Custom{
		ConfigExec: "sh", PrepareExec: "sh", RunExec: "sh", CleanupExec: "sh",
		ConfigArgs: []string{script, "config"}, PrepareArgs: []string{script, "prepare"},
		RunArgs: []string{script, "run"}, CleanupArgs: []string{script, "cleanup"},
	})
}

// run runs the jobs, each of which must end as it should, and adds the time that they take, in milliseconds, and the
// logins.
func (f *executorFleet) run(r *results, name string, c *stockmanager.Custom) error {
	c.BuildsDir, c.CacheDir, c.Temp = f.b.TempDir(), f.b.TempDir(), f.b.TempDir()
	logins := -f.logins()
	begin := time.Now()
	var all errgroup.Group
	all.SetLimit(f.atOnce)
	for i := range f.jobs {
		all.Go(func() error {
			log := new(sshtest.Log)
			code := i % 3
			got := c.Execute(f.b.Context(), executorJob(int64(i+1), code, log))
			if got.ExitCode != code || (got.Reason == "") != (code == 0) || !strings.Contains(log.String(), "\nafter\n") {
				return fmt.Errorf("job %d: %+v: %s", i, got, log)
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	r.add(name, millis(time.Since(begin)))
	r.add(name+"-logins", float64(logins+f.logins()))
	return nil
}

// executorJob returns a small job, with the stages that GitLab Runner gives to it.
func executorJob(id int64, code int, log *sshtest.Log) stockmanager.CustomJob {
	return stockmanager.CustomJob{
		ID: id, Timeout: time.Hour, Log: log,
		Variables: []*runnerproto.Variable{{Key: "CI_JOB_ID", Value: strconv.FormatInt(id, 10)}},
		Stages: []stockmanager.CustomStage{
			{Name: "prepare_script", Script: `echo "Running on $(hostname)..."`},
			{Name: "get_sources", Script: "mkdir -p sources"},
			{Name: "build_script", Script: fmt.Sprintf("test -d sources; exit %d", code)},
			{Name: "after_script", Script: "echo; echo after", Always: true},
			{Name: "cleanup_file_variables", Script: "rm -rf sources", Always: true},
		},
	}
}

// logins counts the connections to all VMs so far.
func (f *executorFleet) logins() (n int) {
	for _, v := range f.vms {
		n += v.TotalConns()
	}
	return n
}

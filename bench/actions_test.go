package bench

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/internal/actionservices"
	"github.com/stepmux/stepmux/internal/boundedhttp"
	"github.com/stepmux/stepmux/internal/testing/npmtest"
	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// BenchmarkActions measures the services for the actions of workflows with npm's own clients: an artifact of one file.
func BenchmarkActions(b *testing.B) {
	packages, err := npmtest.Install(b.TempDir(), npmtest.Clients)
	if err != nil {
		missing(b, "@actions/artifact", err)
		b.Skip(err)
	}
	r := &actionsRig{
		b: b, project: newProject(b, "README", ""), size: sizes([]int64{1 << 30}, 8<<20)[0],
		file: filepath.Join(b.TempDir(), "file"), packages: packages, vm: newVM(b),
	}
	files, err := npmtest.Files()
	require.NoError(b, err)
	for _, job := range []string{"artifact", "neither"} {
		text, err := json.Marshal(workflowOf(r.step(job))) // JSON is YAML
		require.NoError(b, err)
		files[".github/workflows/"+job+".yml"] = string(text)
	}
	for name, text := range files {
		path := filepath.Join(r.project.dir, name)
		require.NoError(b, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(b, os.WriteFile(path, []byte(text), 0o600))
	}
	require.NoError(b, os.WriteFile(r.file, make([]byte, r.size), 0o600))
	b.Run("artifact", r.rates)
	b.Run("unused", r.unused)
	for _, size := range sizes([]int64{100e6, 1 << 30}, 8<<20) {
		b.Run(fmt.Sprintf("cache/%dMB", size/mega), func(b *testing.B) { r.cache(b, size) })
	}
	b.Run("memory/local", func(b *testing.B) { r.memory(b, r.alone("local")) })
	b.Run("memory/run", func(b *testing.B) { r.memory(b, r.alone("run", "--inventory", r.inventory(b))) })
	b.Run("memory/manager", func(b *testing.B) { r.memory(b, r.byManager(b, r.inventory(b))) })
}

// actionsRig has a project with workflows: one whose job uploads a file as an artifact and downloads it, and one whose
// job copies the file.
type actionsRig struct {
	b              *testing.B
	project        *project
	size           int64
	file, packages string
	vm             *vm
}

// step returns the step that does that.
func (r *actionsRig) step(does string) map[string]any {
	do := fmt.Sprintf("time %s %s", does, r.file)
	return map[string]any{"uses": "./act", "with": map[string]any{"do": do, "packages": r.packages}}
}

// workflowOf returns a workflow with one job of one step.
func workflowOf(step map[string]any) any {
	type m = map[string]any
	return m{"on": "push", "jobs": m{"a": m{"runs-on": "ubuntu-latest", "steps": []any{step}}}}
}

// inventory writes an inventory with the VM.
func (r *actionsRig) inventory(b *testing.B) string {
	b.Helper()
	text := fmt.Sprintf("instances:\n  - {id: vm, address: %q, user: %s, key: %s, runner: %s, temp_dir: %s, "+
		"host_keys: [%q]}\n", r.vm.Addr, r.vm.User, r.vm.IdentityFile,
		runnertest.Command(b)[0], r.vm.tmp, // stepmux-fetch is beside it
		strings.TrimSpace(string(ssh.MarshalAuthorizedKey(r.vm.HostKey))))
	file := filepath.Join(b.TempDir(), "fleet.yml")
	require.NoError(b, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// command returns a command with the path of a workflow as its last argument.
func (r *actionsRig) command(does string, args ...string) *exec.Cmd {
	return r.project.command(r.b.Context(), r.project.manager, append(args, ".github/workflows/"+does+".yml")...)
}

// A measured is a way to run a workflow. It returns a command for that. other, if not nil, is the process to look at
// instead, and end ends that.
type measured func(does string) (cmd *exec.Cmd, other *os.Process, end func())

// alone looks at the process of the command.
func (r *actionsRig) alone(args ...string) measured {
	return func(does string) (*exec.Cmd, *os.Process, func()) {
		return r.command(does, args...), nil, func() {}
	}
}

// byManager starts a manager for each command: memory that one has used once is not all given back.
func (r *actionsRig) byManager(b *testing.B, inventory string) measured {
	return func(does string) (*exec.Cmd, *os.Process, func()) {
		state := filepath.Join(b.TempDir(), "state")
		socket := filepath.Join(r.vm.tmp, "m.sock")
		var log sshtest.Log
		cmd := exec.Command(runnertest.Manager(b), "manager", "--inventory", inventory, "--socket", socket, "--state", state)
		cmd.Stderr = &log
		runnertest.StartManager(b, cmd, sshtest.Bound, &log)
		return r.command(does, "submit", "--wait", "--manager", socket), cmd.Process, func() {
			_, _ = cmd.Process.Signal(os.Interrupt), cmd.Wait() // it has done its work
			require.NoError(b, os.RemoveAll(state))
		}
	}
}

// memory measures the largest memory of a process while it runs the workflow that uses the services, and while it runs
// the other one.
func (r *actionsRig) memory(b *testing.B, start measured) {
	all := inTurns(b, costly, []candidate{{name: "memory", run: func(results *results) error {
		most := map[string]float64{}
		for _, does := range []string{"neither", "artifact"} {
			cmd, other, end := start(does)
			used, err := peak(cmd, other)
			end()
			if err != nil {
				return err
			}
			most[does] = used
			results.add(does, used)
		}
		results.add("more", most["artifact"]-most["neither"])
		return nil
	}}})
	all.medians("MiB", "neither", "artifact", "more")
}

// peak runs a command, and returns the largest memory of its process, or of another one, meanwhile, in MiB.
func peak(cmd *exec.Cmd, of *os.Process) (most float64, err error) {
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	if of == nil {
		of = cmd.Process
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		used, err := smaps(of.Pid, "Pss_Anon:") // without the pages of programs, which others have, too
		if err != nil {
			return 0, err
		}
		most = max(most, used/kibi)
		select {
		case <-ticker.C:
		case err := <-ended:
			if err != nil {
				err = fmt.Errorf("%w: %s", err, said.Bytes())
			}
			return most, err
		}
	}
}

// rates measures the upload and the download, also by a plain client that neither packs nor checks, beside a stream of
// the same SSH connection. up is from the job.
func (r *actionsRig) rates(b *testing.B) {
	conn := r.vm.dial(b)
	far := newFar(b, r.vm)
	plain := dialWay(b, "stream", conn).stream(b, far.path)
	s := actionservices.New(actionservices.Config{Dir: b.TempDir()})
	defer s.Close()
	run := func(does string) func(*results) error {
		return func(results *results) error { return r.transfer(b, results, s, conn, does) }
	}
	all := inTurns(b, costly, []candidate{
		{name: "artifact", run: run("artifact")},
		{name: "plain", run: run("plain")},
		transfer("stream-up", 1, directions[0], r.size, plain), // down from the VM is what is up from the job
		transfer("stream-down", 1, directions[1], r.size, plain),
	})
	all.medians("MB/s", "up", "plain-up", "stream-up", "down", "plain-down", "stream-down")
	for _, name := range []string{"up", "plain-up"} {
		all.ratio(name, "stream-up", "stream")
	}
	for _, name := range []string{"down", "plain-down"} {
		all.ratio(name, "stream-down", "stream")
	}
}

// cache measures the restore of a cache that is on the VM, beside the command by which the client unpacks it. It is
// "sent" if the VM does not have it. "here", the client has it from a server on its own machine, without a VM.
func (r *actionsRig) cache(b *testing.B, size int64) {
	conn, caches := r.vm.dial(b), b.TempDir()
	s := actionservices.New(actionservices.Config{Dir: b.TempDir(), Caches: caches})
	defer s.Close()
	archive := filepath.Join(b.TempDir(), "archive")
	act := func(format string, args ...any) (output string, err error) {
		return r.execute(b, s, conn, map[string]any{
			"uses": "./act", "with": map[string]any{"do": fmt.Sprintf(format, args...), "packages": r.packages},
		})
	}
	_, err := act("prepareCache k %d %s", size, archive)
	require.NoError(b, err)
	kept := keptOnVM(b, caches)
	b.Cleanup(func() { _ = os.Remove(kept) })
	turn := 0
	all := inTurns(b, costly, []candidate{{name: "restore", run: func(results *results) error {
		require.FileExists(b, kept)
		turn++
		said, err := act("timeCache k %s %s", archive, firstOf(turn))
		return results.times(said, "", err)
	}}, {name: "sent", run: func(results *results) error {
		require.NoError(b, os.Remove(kept))
		said, err := act("timeCache k %s %s", archive, firstOf(turn))
		return results.times(said, "sent-", err)
	}}, {name: "here", run: func(results *results) error {
		said, err := r.runHere(b, s, fmt.Sprintf("timeCache k %s %s", archive, firstOf(turn)))
		return results.times(said, "here-", err)
	}}})
	all.medians("s", "restore", "tar", "sent-restore", "here-restore")
	all.ratio("restore", "tar", "tar")
	all.ratio("sent-restore", "sent-tar", "tar")
	all.ratio("here-restore", "here-tar", "tar")
	all.ratio("restore", "here-restore", "here")
}

// runHere runs the action on this machine, as a job of a server that listens here.
func (r *actionsRig) runHere(b *testing.B, s *actionservices.Server, do string) (output string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := boundedhttp.ServeFiles(listener, s, nil)
	defer server.Close()
	token, end := s.Begin(actionservices.Job{Run: rand.Text(), Name: "a"})
	defer end()
	cmd := exec.CommandContext(b.Context(), "node", filepath.Join(r.project.dir, "act", "main.mjs"))
	cmd.Dir = r.project.dir
	at := "http://" + listener.Addr().String() + "/"
	cmd.Env = append(os.Environ(), "INPUT_DO="+do, "INPUT_PACKAGES="+r.packages, "ACTIONS_RUNTIME_TOKEN="+token,
		"ACTIONS_RUNTIME_URL="+at, "ACTIONS_RESULTS_URL="+at, "ACTIONS_CACHE_URL="+at, "ACTIONS_CACHE_SERVICE_V2=true",
		"GITHUB_SERVER_URL=https://github.com", "RUNNER_TEMP="+b.TempDir(), "GITHUB_WORKSPACE="+cmd.Dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return string(out), err
}

// firstOf returns which of the two is first in a turn.
func firstOf(turn int) string { return []string{"tar", "restore"}[turn%2] }

// times adds the seconds that a job has measured, by names with a prefix, unless err is an error.
func (r *results) times(said, prefix string, err error) error {
	if err != nil {
		return err
	}
	return timesOf(said, func(name string, seconds float64) { r.add(prefix+name, seconds) })
}

// timesOf calls add with the times that a job has measured.
func timesOf(said string, add func(name string, seconds float64)) error {
	for _, line := range timedLine.FindAllStringSubmatch(said, -1) {
		seconds, err := strconv.ParseFloat(line[2], 64)
		if err != nil {
			return err
		}
		add(line[1], seconds)
	}
	return nil
}

// keptOnVM returns the path at which the VM keeps the only cache of a directory.
func keptOnVM(b *testing.B, caches string) string {
	found, err := filepath.Glob(filepath.Join(caches, "*", "cache.json"))
	require.NoError(b, err)
	require.Len(b, found, 1)
	text, err := os.ReadFile(found[0])
	require.NoError(b, err)
	var about struct{ Sum string }
	require.NoError(b, json.Unmarshal(text, &about))
	own, err := os.UserCacheDir()
	require.NoError(b, err)
	return filepath.Join(own, "stepmux-steps", "projects", about.Sum)
}

// unused measures jobs that have services and do not use them, beside jobs without: the processor time of both ends for
// one, from its connection to its end. The two take turns, and each turn has several jobs, as one is too short for the
// clock of /proc.
func (r *actionsRig) unused(b *testing.B) {
	conn := r.vm.dial(b)
	s := actionservices.New(actionservices.Config{Dir: b.TempDir()})
	defer s.Close()
	n := sizes([]int{16}, 2)[0]
	run := func(name string, services *actionservices.Server) candidate {
		return candidate{name: name, run: func(results *results) error {
			before, err := bothEnds()
			for range n {
				if err == nil {
					_, err = r.execute(b, services, conn, map[string]any{"run": "true"})
				}
			}
			if err != nil {
				return err
			}
			after, err := bothEnds()
			results.add(name, millis(after-before)/float64(n))
			return err
		}}
	}
	all := inTurns(b, steadier, []candidate{run("with", s), run("without", nil)})
	all.medians("ms", "with", "without")
	all.ratio("with", "without", "without")
}

// bothEnds returns the processor time that this process and the VM's end have used so far.
func bothEnds() (time.Duration, error) {
	vm, err := vmCPU()
	if err != nil {
		return 0, err
	}
	own, err := ownCPU()
	return vm + own, err
}

// timedLine is a line of the action.
var timedLine = regexp.MustCompile(`timed ([a-z-]+) ([0-9.]+)`)

// transfer runs a build with the job on a connection, and adds the rates that the job has measured.
func (r *actionsRig) transfer(
	b *testing.B, results *results, s *actionservices.Server, conn *mux.Conn, does string,
) error {
	said, err := r.execute(b, s, conn, r.step(does))
	if err != nil {
		return err
	}
	return timesOf(said, func(name string, seconds float64) { results.add(name, float64(r.size)/mega/seconds) })
}

// execute runs a build on a connection whose job is a workflow of one step. With a Server its actions have services.
func (r *actionsRig) execute(
	b *testing.B, s *actionservices.Server, conn *mux.Conn, step map[string]any,
) (output string, err error) {
	c, err := r.vm.newConnector(b, conn, &connector.VM{}, connector.Auto)
	if err != nil {
		return "", err
	}
	if _, err = c.Connect(b.Context()); err != nil {
		return "", err
	}
	defer func() { require.NoError(b, c.Close(b.Context())) }()
	workflow, err := json.Marshal(workflowOf(step))
	if err != nil {
		return "", err
	}
	steps, err := json.Marshal(map[string]any{"run": []any{map[string]any{
		"name": "a", "step": "builtin://github/job", "inputs": map[string]any{"job": "a", "workflow": string(workflow)},
	}}})
	if err != nil {
		return "", err
	}
	job := connector.Job{Job: &stepmuxv1.Job{Steps: steps}, WorkDir: r.project.dir}
	if s != nil {
		run := rand.Text()
		job.Services = func() (*connector.Services, func(), error) {
			token, end := s.Begin(actionservices.Job{Run: run, Name: "a"})
			door := s.Door(nil)
			return &connector.Services{Token: token, Take: door.Take}, func() {
				door.Close()
				end()
				s.Forget(b.Context(), run)
			}, nil
		}
	}
	var said bytes.Buffer
	got, err := c.Execute(b.Context(), job, &said)
	if err == nil && got.Status != connector.Succeeded {
		err = fmt.Errorf("the job: %s", got.Status)
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, said.Bytes())
	}
	return said.String(), err
}

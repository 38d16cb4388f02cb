package manager_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/manager"
	"github.com/stepmux/stepmux/instance/manager/sshdoor"
	"github.com/stepmux/stepmux/internal/testing/dockertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/testing/stockmanager"
)

// front is the SSH server of a manager, and how its clients log in.
type front struct {
	*running
	addr string
	vm   *sshtest.Server // has the client's key, too
	dir  string
}

// serveSSH starts a manager of the fleet that serves SSH. Its clients have the key that the fleet's VM knows, too.
func (f *fleet) serveSSH(t *testing.T, forward bool) *front {
	t.Helper()
	s := &front{running: f.start(t), vm: f.vm, dir: t.TempDir()}
	keys := filepath.Join(s.dir, "keys")
	line := append([]byte("# of the test\n\n"), ssh.MarshalAuthorizedKey(f.vm.Signer.PublicKey())...)
	require.NoError(t, os.WriteFile(keys, line, 0o600))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.addr = listener.Addr().String()
	var serving sync.WaitGroup
	serving.Go(func() {
		err := s.m.ServeSSH(context.Background(), listener, sshdoor.Config{KeysFile: keys, Forward: forward})
		if err != nil {
			t.Errorf("serve SSH: %v", err)
		}
	})
	stop := s.stop
	s.stop = func() {
		stop()
		serving.Wait()
	}
	t.Cleanup(s.stop)
	return s
}

// dial logs in as a user.
func (s *front) dial(user string) *ssh.Client {
	s.t.Helper()
	client, err := ssh.Dial("tcp", s.addr, loginOf(s.vm, user))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// loginOf is the configuration of a client that has the key for a VM.
func loginOf(vm *sshtest.Server, user string) *ssh.ClientConfig {
	config := vm.ClientConfig()
	config.User, config.HostKeyAlgorithms = user, nil
	config.HostKeyCallback = ssh.InsecureIgnoreHostKey() // a test's
	return config
}

// options are those of OpenSSH's programs. port is -p, or -P for some.
func (s *front) options(port string) []string {
	_, number, err := net.SplitHostPort(s.addr)
	require.NoError(s.t, err)
	return []string{
		"-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", "-o",
		"UserKnownHostsFile=" + filepath.Join(s.dir, "known"), "-o", "LogLevel=ERROR", "-i", s.vm.IdentityFile, port, number,
	}
}

// call runs a program, with a text as its input, and returns what it says, and its exit code.
func (s *front) call(input, program string, args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	cmd := exec.CommandContext(sshtest.Within(s.t), program, args...)
	cmd.Stdin = strings.NewReader(input)
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	_ = cmd.Run() // its exit code tells
	require.NotNil(s.t, cmd.ProcessState, program)
	return out.String(), messages.String(), cmd.ProcessState.ExitCode()
}

// free waits until no login has a slot.
func (s *front) free() {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.slots() == 0 }, sshtest.Bound, bound10ms, "a slot is not back")
}

// The tour of OpenSSH's own programs.
func TestStockSSHClientsWorkThroughTheFrontDoor(t *testing.T) {
	t.Parallel()
	f := newFleetOn(t, sshtest.OpenSSH(t))
	s := f.serveSSH(t, false)
	const host = "any@127.0.0.1"
	shell := func(input, user string, command ...string) (string, string, int) {
		return s.call(input, "ssh", append(append(s.options("-p"), user), command...)...)
	}
	out, messages, code := shell("", host, "echo out; echo err >&2; exit 7")
	require.Equal(t, []any{"out\n", "err\n", 7}, []any{out, messages, code})
	binary := strings.Repeat("step runner: \x00\xff\r\n", 50_000)
	out, _, code = shell(binary, host, "cat; kill -TERM $$")
	require.True(t, binary == out, "no byte is changed")
	require.Equal(t, 143, code)
	out, _, code = shell("echo from a shell\nexit 5\n", host)
	require.Equal(t, "from a shell\n", out)
	require.Equal(t, 5, code)
	out, messages, code = shell("", host, "-tt", `test -t 0; echo "$? $SHELL"; stty size; exit 6`)
	require.Equal(t, 6, code, messages)
	require.Regexp(t, "^0 /.+\r\n24 80\r\n$", out)
	out, _, _ = shell("", "vm-1@127.0.0.1", "command -v gitlab-runner step-runner")
	require.Equal(t, 2, strings.Count(out, "/tools-"), out)
	_, messages, code = shell("", "vm-2@127.0.0.1", "true")
	require.Equal(t, 255, code)
	require.Contains(t, messages, `there is no instance "vm-2"`)
	_, messages, code = shell("", "os=plan9@127.0.0.1", "true")
	require.Equal(t, 255, code)
	require.Contains(t, messages, `there is no instance with the labels "os=plan9"`)

	file, copied := filepath.Join(s.dir, "file"), filepath.Join(s.dir, "copied")
	require.NoError(t, os.WriteFile(file, []byte(binary), 0o600))
	for i, args := range [][]string{
		append(s.options("-P"), file, host+":"+copied+"0"), append(s.options("-P"), host+":"+copied+"0", copied+"1"),
		append(append([]string{"-O"}, s.options("-P")...), file, host+":"+copied+"2"),
	} {
		_, messages, code = s.call("", "scp", args...)
		require.Equal(t, 0, code, messages)
		text, err := os.ReadFile(copied + strconv.Itoa(i))
		require.NoError(t, err)
		require.True(t, binary == string(text), "scp %d", i)
	}
	_, messages, code = s.call("mkdir "+s.dir+"/made\nput "+file+" "+s.dir+"/made/it\n", "sftp",
		append(s.options("-P"), "-b", "-", host)...)
	require.Equal(t, 0, code, messages)
	require.FileExists(t, s.dir+"/made/it")
	sshtest.RequirePart(t, "rsync", "/usr/bin/rsync")
	_, messages, code = s.call("", "rsync", "-a", "-e", "ssh "+strings.Join(s.options("-p"), " "), s.dir+"/made/",
		host+":"+s.dir+"/synced")
	require.Equal(t, 0, code, messages)
	text, err := os.ReadFile(s.dir + "/synced/it")
	require.NoError(t, err)
	require.True(t, binary == string(text))
	if os.Getenv("STEPMUX_ANSIBLE") != "" {
		s.ansible()
	}
	s.free()
	require.Equal(t, 1, f.vm.TotalConns(), "connections to the VM")
}

// ansible runs modules that copy files and run commands.
func (s *front) ansible() {
	s.t.Helper()
	_, port, err := net.SplitHostPort(s.addr)
	require.NoError(s.t, err)
	play := filepath.Join(s.dir, "play.yml")
	require.NoError(s.t, os.WriteFile(play, []byte(`- hosts: all
  gather_facts: true
  tasks:
    - copy: {content: "by ansible", dest: `+s.dir+`/ansible}
    - command: cat `+s.dir+`/ansible
      register: said
    - assert: {that: said.stdout == "by ansible"}
`), 0o600))
	cmd := exec.CommandContext(sshtest.Within(s.t), "ansible-playbook", "-i", "door,", play,
		"-e", "ansible_host=127.0.0.1", "-e", "ansible_port="+port, "-e", "ansible_user=any",
		"--private-key", s.vm.IdentityFile,
		"--ssh-common-args", "-o StrictHostKeyChecking=accept-new -o UserKnownHostsFile="+filepath.Join(s.dir, "known"))
	cmd.Env = append(os.Environ(), "HOME="+s.dir)
	out, err := cmd.CombinedOutput()
	require.NoError(s.t, err, "%s", out)
	s.t.Logf("%s", out)
}

// STEPMUX_SSH_LOGINS=200 is the long form.
func TestManyLoginsAtOnceShareTheConnectionOfTheVM(t *testing.T) {
	t.Parallel()
	logins := 40
	if text := os.Getenv("STEPMUX_SSH_LOGINS"); text != "" {
		var err error
		logins, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	f := newFleetOn(t, sshtest.OpenSSH(t))
	f.capacity = 10
	s := f.serveSSH(t, false)
	var all sync.WaitGroup
	for i := range logins {
		all.Go(func() {
			client, err := ssh.Dial("tcp", s.addr, loginOf(s.vm, "any"))
			if err != nil {
				t.Errorf("login %d: %v", i, err)
				return
			}
			defer client.Close()
			session, err := client.NewSession()
			if err == nil {
				var out []byte
				out, err = session.Output(fmt.Sprintf("echo %d; exit 3", i))
				exit, ok := errors.AsType[*ssh.ExitError](err)
				if ok && exit.ExitStatus() == 3 && string(out) == fmt.Sprintf("%d\n", i) {
					err = nil
				}
			}
			if err != nil {
				t.Errorf("login %d: %v", i, err)
			}
		})
	}
	all.Wait()
	s.free()
	require.Equal(t, 1, f.vm.TotalConns(), "connections to the VM")
}

func TestALoginIsOneSlotAndEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	s := f.serveSSH(t, false)
	client := s.dial("any")
	gone := filepath.Join(s.dir, "gone")
	var outs []io.Reader
	for i := range 3 {
		session, err := client.NewSession()
		require.NoError(t, err)
		out, err := session.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, session.Start(fmt.Sprintf(
			"trap 'echo int' INT; trap 'touch %s%d; exit' TERM; echo up; while :; do sleep 0.01; done", gone, i)))
		require.Equal(t, "up\n", read(t, out, 3))
		outs = append(outs, out)
		if i == 0 {
			require.NoError(t, session.Signal(ssh.SIGINT))
			require.Equal(t, "int\n", read(t, outs[0], 4))
		}
	}
	require.Equal(t, 1, s.slots(), "one login is one lease")
	_, err := client.Dial("tcp", "127.0.0.1:22")
	require.ErrorContains(t, err, "allows no forwarding")
	require.NoError(t, client.Close())
	s.free()
	for i := range 3 {
		require.FileExists(t, gone+strconv.Itoa(i), "the commands got SIGTERM")
	}
	// A lease of a login does not outlive its manager.
	client = s.dial("any")
	session, err := client.NewSession()
	require.NoError(t, err)
	out, err := session.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, session.Start("echo up; sleep 600"))
	require.Equal(t, "up\n", read(t, out, 3))
	s.stop()
	require.Error(t, session.Wait())
	next := f.start(t)
	require.Equal(t, 0, (&front{running: next}).slots())
}

// Symptom: over a connection that its client keeps (ControlPersist), each command failed with the error of the first,
// although the VM had come meanwhile.
func TestALoginThatWasRefusedASlotAsksAgain(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	var group *instance.Group
	f.change = func(cfg *manager.Config) { group = cfg.Group }
	s := f.serveSSH(t, false)
	client := s.dial("vm-2")
	run := func() error {
		session, err := client.NewSession()
		require.NoError(t, err)
		return session.Run("true")
	}
	refused, ok := errors.AsType[*ssh.ExitError](run())
	require.True(t, ok)
	require.Equal(t, 255, refused.ExitStatus())
	all := group.Instances()
	second := all[0]
	second.ID = "vm-2"
	require.NoError(t, group.Update(append(all, second)))
	require.NoError(t, run())
	require.Equal(t, 1, s.slots())
	require.NoError(t, client.Close())
	s.free()
}

func read(t *testing.T, from io.Reader, n int) string {
	t.Helper()
	buf := make([]byte, n)
	_, err := io.ReadFull(from, buf)
	require.NoError(t, err)
	return string(buf)
}

// Symptom: a login without a command failed on a VM whose login shell is fish, with "${ is not a valid variable", and a
// terminal where it is tcsh, with "Unmatched '".
func TestALoginsShellNeedNotBeAPOSIXShell(t *testing.T) {
	for _, shell := range []string{"fish", "tcsh"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			path := "/usr/bin/" + shell
			sshtest.RequirePart(t, shell, path)
			s := newFleetOn(t, sshtest.OpenSSH(t, "SetEnv SHLVL=1 SHELL="+path)).serveSSH(t, false)
			for _, terminal := range []string{"-T", "-tt"} {
				args := append(s.options("-p"), terminal, "any@127.0.0.1")
				out, messages, code := s.call("echo from 'a shell'; exit 5\n", "ssh", args...)
				require.Contains(t, out, "from a shell", messages)
				require.Equal(t, 5, code, messages)
				out, messages, code = s.call("", "ssh", append(args, "echo a command\\!; exit 6")...)
				require.Contains(t, out, "a command!", messages)
				require.Equal(t, 6, code, messages)
			}
		})
	}
}

func TestForwardsGoToTheVM(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	s := f.serveSSH(t, true)
	client := s.dial("any")
	for _, network := range []string{"tcp", "unix"} {
		address := "127.0.0.1:0"
		if network == "unix" {
			address = filepath.Join(sshtest.SocketDir(t), "s")
		}
		listener, err := net.Listen(network, address)
		require.NoError(t, err)
		echoed := make(chan struct{})
		go func() {
			defer close(echoed)
			defer listener.Close()
			nc, err := listener.Accept()
			if err != nil {
				return
			}
			defer nc.Close()
			_, _ = io.Copy(nc, nc)
		}()
		conn, err := client.Dial(network, listener.Addr().String())
		require.NoError(t, err)
		_, err = conn.Write([]byte("ping"))
		require.NoError(t, err)
		require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
		text, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Equal(t, "ping", string(text))
		_ = conn.Close() // the channel may have ended
		<-echoed
	}
	_, err := client.Dial("unix", filepath.Join(s.dir, "none"))
	require.Error(t, err)
	_, err = client.Listen("tcp", "127.0.0.1:0")
	require.Error(t, err, "no forwards from the VM")
}

// Symptom: a client that closed a forward right after its last bytes, as libraries do, lost the end of them. The server
// here begins to read when the client has gone; before that it answers, to nobody.
func TestAForwardDeliversWhatItsClientSentBeforeItClosed(t *testing.T) {
	t.Parallel()
	s := newFleetOn(t, sshtest.OpenSSH(t)).serveSSH(t, true)
	client := s.dial("any")
	const sent = 3 << 20 // the VM takes 2 MiB ahead of the server, and the manager 2 MiB more
	for _, answer := range []int{0, 4 << 20} {
		address := filepath.Join(sshtest.SocketDir(t), "s")
		listener, err := net.Listen("unix", address)
		require.NoError(t, err)
		defer listener.Close()
		conn, err := client.Dial("unix", address)
		require.NoError(t, err)
		_, err = conn.Write(make([]byte, sent))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		nc, err := listener.Accept()
		require.NoError(t, err)
		defer nc.Close()
		_, _ = nc.Write(make([]byte, answer)) // it may have nowhere to go
		got, err := io.Copy(io.Discard, nc)
		require.NoError(t, err)
		require.EqualValues(t, sent, got, "with an answer of %d bytes", answer)
	}
}

func TestJobsOfGitLabsSSHExecutorWorkThroughTheFrontDoor(t *testing.T) {
	t.Parallel()
	f := newFleetOn(t, sshtest.OpenSSH(t))
	s := f.serveSSH(t, false)
	runner := &stockmanager.SSH{Addr: s.addr, Config: loginOf(s.vm, "any"), BuildsDir: t.TempDir()}
	job := func(id int64, script string) (stockmanager.CustomJob, *sshtest.Log) {
		log := new(sshtest.Log)
		return stockmanager.CustomJob{ID: id, Log: log, Stages: []stockmanager.CustomStage{
			{Name: "prepare_script", Script: "shopt login_shell; gitlab-runner --version | head -n 1"},
			{Name: "build_script", Script: script},
			{Name: "after_script", Script: "echo after", Always: true},
		}}, log
	}
	var jobs sync.WaitGroup
	for i := range 6 { // on two slots
		jobs.Go(func() {
			j, log := job(int64(i), fmt.Sprintf("echo job %d; pwd; exit %d", i, i))
			result := runner.Execute(sshtest.Within(t), j)
			want := stockmanager.CustomResult{}
			if i > 0 {
				want = stockmanager.CustomResult{
					Reason: "script_failure", ExitCode: i, Message: fmt.Sprintf("build_script: exit code %d", i),
				}
			}
			text := fmt.Sprintf("\njob %d\n%s/%d\nafter\n", i, runner.BuildsDir, i)
			if result != want || !strings.Contains(log.String(), text) || !strings.Contains(log.String(), "\ton\nVersion: ") {
				t.Errorf("job %d: %+v: %s", i, result, log)
			}
		})
	}
	jobs.Wait()
	ctx, cancel := context.WithCancel(sshtest.Within(t))
	j, log := job(10, "echo up; sleep 600")
	ended := make(chan stockmanager.CustomResult, 1)
	go func() { ended <- runner.Execute(ctx, j) }()
	log.Await(t, "up\n")
	cancel()
	require.Equal(t, "runner_system_failure", (<-ended).Reason)
	s.free()
	require.Equal(t, 1, f.vm.TotalConns(), "connections to the VM")
}

// The client of Docker reaches the daemon of the VM by "docker system dial-stdio" there.
func TestDockersClientReachesADaemonThroughTheFrontDoor(t *testing.T) {
	t.Parallel()
	d := dockertest.Start(t)
	sshtest.RequirePart(t, "docker.io", "/usr/bin/docker")
	f := newFleetOn(t, sshtest.OpenSSH(t, "SetEnv SHLVL=1 DOCKER_HOST=unix://"+d.Socket))
	s := f.serveSSH(t, false)
	_, port, err := net.SplitHostPort(s.addr)
	require.NoError(t, err)
	// Docker's client takes no options for ssh. It has several connections at once: they share a login, and so a slot.
	wrapper := filepath.Join(s.dir, "ssh")
	text := "#!/bin/sh\nexec /usr/bin/ssh " + strings.Join(s.options("-p"), " ") +
		" -o ControlMaster=auto -o ControlPath=" + filepath.Join(sshtest.SocketDir(t), "c") + ` "$@"` + "\n"
	require.NoError(t, os.WriteFile(wrapper, []byte(text), 0o755)) // a program
	docker := func(args ...string) string {
		cmd := exec.CommandContext(sshtest.Within(t), "/usr/bin/docker", args...)
		cmd.Env = append(os.Environ(), "PATH="+s.dir+":"+os.Getenv("PATH"), "DOCKER_HOST=ssh://any@127.0.0.1:"+port,
			"DOCKER_CONFIG="+s.dir)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.NotEmpty(t, docker("version", "--format", "{{.Server.Version}}"))
	d.Load(t, "door:1", `CMD ["echo", "from a container"]`)
	require.Equal(t, "from a container\n", docker("run", "--rm", "door:1"))
	s.free()
	require.Equal(t, 1, f.vm.TotalConns(), "connections to the VM")
}

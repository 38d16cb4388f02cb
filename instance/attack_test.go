package instance_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// attackVar makes the test binary the job of a build that attacks another build of the same user on the same
// VM. Its value is a victim.
const attackVar = "STEPMUX_TEST_ATTACK"

// victim describes a build to its attacker: more than a job can know.
type victim struct {
	Socket  string // of the other build
	Job     string // that it runs
	Temp    string // the VM's directory for temporary files
	Own     string // the secret of the attacker's own build, as it is sent
	Secret  string // SHA-256 of the other build's, to know it by
	Manager int    // a process on this machine that would not be on the VM
}

// attack tries every attack. Each success is a line on stdout that begins with BREACH; the last line counts the tries.
func attack(encoded string) error {
	a := &attacker{}
	if err := json.Unmarshal([]byte(encoded), &a.victim); err != nil {
		return err
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil || !bytes.Contains(status, []byte("CapEff:\t0000000000000000")) {
		return fmt.Errorf("the attacker is privileged: %w", err)
	}
	if err := a.call(); err != nil {
		return err
	}
	a.spy()
	if !a.breached { // else it would take from pipes what others wait for
		a.search()
	}
	fmt.Fprintf(os.Stdout, "tries: %d\n", a.tries)
	return nil
}

type attacker struct {
	victim
	tries    int
	breached bool
}

// try counts a try, and tells if it was a success.
func (a *attacker) try(success bool, format string, args ...any) {
	a.tries++
	if success {
		a.breached = true
		fmt.Fprintf(os.Stdout, "BREACH "+format+"\n", args...)
	}
}

// call uses the victim's socket: to list, read, run, cancel and remove, by both services.
func (a *attacker) call() error {
	client, err := grpc.NewClient("unix:"+a.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer client.Close()
	ours, theirs := pb.NewStepRunnerClient(client), runnerproto.NewStepRunnerClient(client)
	for _, secret := range []string{"", "Bearer", wire.NewSecret().Authorization(), a.Own} {
		ctx := context.Background()
		if secret != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, wire.AuthorizationKey, secret)
		}
		for name, call := range map[string]func() error{
			"List":   func() error { _, err := ours.List(ctx, &pb.ListRequest{}); return err },
			"Run":    func() error { _, err := ours.Run(ctx, &pb.RunRequest{Id: "evil", CiScript: "true"}); return err },
			"Cancel": func() error { _, err := ours.Cancel(ctx, &pb.CancelRequest{Id: a.Job, Force: true}); return err },
			"Follow": func() error { return first(ours.Follow(ctx, &pb.FollowRequest{Id: a.Job})) },
			"FollowIO": func() error {
				return first(ours.FollowIO(ctx, &pb.FollowIORequest{Id: a.Job}))
			},
			"proto Status": func() error { _, err := theirs.Status(ctx, &runnerproto.StatusRequest{}); return err },
			"proto Run":    func() error { _, err := theirs.Run(ctx, &runnerproto.RunRequest{Id: "evil"}); return err },
			"proto Cancel": func() error { _, err := theirs.Cancel(ctx, &runnerproto.CancelRequest{Id: a.Job}); return err },
			"proto Close":  func() error { _, err := theirs.Close(ctx, &runnerproto.CloseRequest{Id: a.Job}); return err },
			"proto FollowLogs": func() error {
				return first(theirs.FollowLogs(ctx, &runnerproto.FollowLogsRequest{Id: a.Job}))
			},
		} {
			err := call()
			a.try(status.Code(err) != codes.Unauthenticated, "%s with %q: %v", name, secret, err)
		}
	}
	return nil
}

// first receives the first message of a stream.
func first[M any](stream grpc.ServerStreamingClient[M], err error) error {
	if err == nil {
		_, err = stream.Recv()
	}
	return err
}

// spy looks into the processes of the VM's end, which have the secrets.
func (a *attacker) spy() {
	nc, err := net.Dial("unix", a.Socket)
	if err != nil {
		a.try(true, "nothing: %v", err) // the test is wrong
		return
	}
	defer nc.Close()
	raw, _ := nc.(*net.UnixConn).SyscallConn()
	var pids []int
	_ = raw.Control(func(fd uintptr) {
		if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pids = append(pids, int(peer.Pid))
		}
	})
	for pid, line := range processes() {
		if strings.Contains(line, "\x00steps\x00") && strings.Contains(line, a.Temp) && !strings.HasPrefix(line, "sh\x00") {
			pids = append(pids, pid)
		}
	}
	for _, pid := range pids {
		names := []string{"environ", "mem", "maps", "auxv"}
		for fd := range 20 {
			names = append(names, "fd/"+strconv.Itoa(fd))
		}
		for _, name := range names {
			f, err := os.OpenFile(fmt.Sprintf("/proc/%d/%s", pid, name), os.O_RDONLY|unix.O_NONBLOCK, 0)
			if err == nil {
				f.Close()
			}
			a.try(err == nil, "opened %s of process %d", name, pid)
		}
		if a.breached {
			return
		}
		a.try(unix.PtraceSeize(pid) == nil, "attached to process %d", pid)
		one := make([]byte, 1)
		local, remote := []unix.Iovec{{Base: &one[0], Len: 1}}, []unix.RemoteIovec{{Base: 0x400000, Len: 1}}
		_, err := unix.ProcessVMReadv(pid, local, remote, 0)
		a.try(err != unix.EPERM, "read memory of process %d: %v", pid, err)
	}
}

// processes returns the command lines of all processes.
func processes() map[int]string {
	all := map[int]string{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			all[pid] = string(line)
		}
	}
	return all
}

var couldBeSecret = regexp.MustCompile(`[A-Za-z0-9_-]{43,}`)

// search looks for the secret in the command line, the environment and the files of every process, and in every
// file below the VM's directory for temporary files.
func (a *attacker) search() {
	type file struct{ device, inode uint64 }
	seen := map[file]bool{} // many processes have the same files open
	text := make([]byte, 1<<20)
	look := func(where string) (opened bool) {
		f, err := os.OpenFile(where, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return false
		}
		defer f.Close()
		n, _ := unix.Read(int(f.Fd()), text) // a pipe has what it has
		a.find(text[:max(n, 0)], where)
		return true
	}
	for pid := range processes() {
		if pid == a.Manager || pid == os.Getpid() { // which were told
			continue
		}
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		look(filepath.Join(dir, "cmdline"))
		look(filepath.Join(dir, "environ"))
		fds, _ := filepath.Glob(filepath.Join(dir, "fd", "*"))
		for _, fd := range fds {
			// Reading empties a pipe: read only those of this VM, and no terminals.
			fi, err := os.Stat(fd)
			if err != nil {
				continue
			}
			stat, _ := fi.Sys().(*syscall.Stat_t)
			is := file{stat.Dev, stat.Ino}
			if fi.Mode().IsRegular() && !seen[is] || fi.Mode()&fs.ModeNamedPipe != 0 && a.near(pid) {
				seen[is] = look(fd)
			}
		}
	}
	_ = filepath.WalkDir(a.Temp, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			look(path)
		}
		return nil
	})
}

// near reports whether a process belongs to the VM's end.
func (a *attacker) near(pid int) bool {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return bytes.Contains(line, []byte("\x00steps\x00")) && bytes.Contains(line, []byte(a.Temp))
}

// find looks for the secret in text.
func (a *attacker) find(text []byte, where string) {
	a.tries++
	for _, run := range couldBeSecret.FindAll(text, -1) {
		for at := 0; at+43 <= len(run); at++ {
			if hash(string(run[at:at+43])) == a.Secret {
				fmt.Fprintln(os.Stdout, "BREACH the secret is in", where)
			}
		}
	}
}

func hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// secretOf returns the secret of calls to a build's step runner.
func secretOf(t testing.TB, e *instance.Executor) string {
	t.Helper()
	md, err := e.Credentials().GetRequestMetadata(t.Context())
	require.NoError(t, err)
	require.Len(t, md, 1)
	return md[wire.AuthorizationKey]
}

//stepmux:faults executor | Builds on a VM can list, read and cancel each other's jobs
//stepmux:acceptance neighbours | No job can list, read, start or cancel jobs in another build's step runner
//stepmux:with remote.TestEveryCallNeedsTheSecret
//stepmux:reliability mechanisms | No build reaches the step runner of another | `remote/job/service/auth.go`
func TestAJobCannotTouchTheServerOfAnotherBuild(t *testing.T) {
	// Symptom: any build on a VM could list, read and kill the jobs of another.
	onServers(t, func(t *testing.T, v *vm) {
		v.beOrdinary(t)
		for _, route := range []connector.Route{connector.Auto, connector.Session} {
			p := v.provider(t, 2, func(c *instance.Config, _ *instance.Instance) { c.Route = route })
			out := &sshtest.Log{}
			neighbour := prepared(t, p, "b2", out)
			wait, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "gate"))
			ended := make(chan error, 1)
			go func() {
				ended <- neighbour.Execute(sshtest.Within(t), script(
					"echo started; "+wait+"; echo done"))
			}()
			out.Await(t, "started")

			evil := &sshtest.Log{}
			e := prepared(t, p, "b1", evil)
			own, theirs := secretOf(t, e), secretOf(t, neighbour)
			require.NotEqual(t, own, theirs)
			target, err := json.Marshal(victim{
				Socket: v.socket("b2"), Job: "b2", Temp: v.tmp, Own: own, Manager: os.Getpid(),
				Secret: hash(strings.TrimPrefix(theirs, "Bearer ")),
			})
			require.NoError(t, err)
			job := script(os.Args[0])
			job.Env = map[string]string{attackVar: string(target)}
			require.NoError(t, e.Execute(sshtest.Within(t), job), "%s", evil)
			require.NotContains(t, evil.String(), "BREACH")
			require.Regexp(t, `(?m)^tries: \d{3,}$`, evil.String())
			require.NoError(t, e.Cleanup(sshtest.Within(t)))

			open()
			require.NoError(t, <-ended)
			require.Equal(t, "started\ndone\n", out.String(), "the neighbour went on")

			// What was refused is possible: with the secret.
			client, err := grpc.NewClient("unix:"+v.socket("b2"), grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithPerRPCCredentials(neighbour.Credentials()))
			require.NoError(t, err)
			jobs, err := pb.NewStepRunnerClient(client).List(sshtest.Within(t), &pb.ListRequest{})
			require.NoError(t, err)
			require.Len(t, jobs.GetJobs(), 1)
			require.NoError(t, client.Close())
			require.NoError(t, neighbour.Cleanup(sshtest.Within(t)))
			v.requireClean(t)
			require.NoError(t, p.Close())
		}
	})
}

// beOrdinary makes the step runners of the VM, and so their jobs, run without root's privileges: then root is a user
// like any other to processes of its own. Tests that run as another user need nothing.
func (v *vm) beOrdinary(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	const setpriv = "/usr/bin/setpriv"
	sshtest.RequirePart(t, "util-linux", setpriv)
	v.runner = append([]string{setpriv, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"}, v.runner...)
}

//stepmux:acceptance neighbours | Steps know neither the socket nor the secret
func TestStepsKnowNeitherTheSocketNorTheSecret(t *testing.T) {
	onServers(t, func(t *testing.T, v *vm) {
		for _, route := range []connector.Route{connector.Auto, connector.Session} {
			p := v.provider(t, 1, func(c *instance.Config, _ *instance.Instance) { c.Route = route })
			out := &sshtest.Log{}
			e := prepared(t, p, "b1", out)
			job := connector.Job{Job: &pb.Job{Steps: []byte(`run:
  - name: look
    exec: {command: [sh, -c, "env; tr '\\0' '\\n' </proc/self/cmdline; ls -l /proc/self/fd; true"]}
`)}}
			require.NoError(t, e.Execute(sshtest.Within(t), job))
			require.Contains(t, out.String(), "PATH=")
			require.Contains(t, out.String(), "pipe:")
			require.NotContains(t, out.String(), "step-runner.sock")
			require.NotContains(t, out.String(), "socket:")
			require.NotContains(t, out.String(), strings.TrimPrefix(secretOf(t, e), "Bearer "))
			require.NoError(t, e.Cleanup(sshtest.Within(t)))
			require.NoError(t, p.Close())
		}
	})
}

//stepmux:acceptance neighbours | A build whose server another job killed is no success
func TestAJobThatKillsAnotherBuildsServerDoesNotMakeItASuccess(t *testing.T) {
	// That is in the power of a process of the same user. What it brings about is a failure of the system.
	v := newVM(t, sshtest.OpenSSH(t))
	v.beOrdinary(t)
	p := v.provider(t, 2, nil)
	out := &sshtest.Log{}
	neighbour := prepared(t, p, "b2", out)
	ended := make(chan error, 1)
	go func() { ended <- neighbour.Execute(sshtest.Within(t), script("echo started; sleep 600")) }()
	out.Await(t, "started")
	kill := fmt.Sprintf("kill -%d %d", syscall.SIGKILL, servePID(t, v, "b2"))
	require.NoError(t, build(sshtest.Within(t), p, "b1", script(kill), &sshtest.Log{}))
	requireReason(t, <-ended, instance.RunnerSystemFailure, 137)
	require.NoError(t, neighbour.Cleanup(sshtest.Within(t)))
	v.requireClean(t)
}

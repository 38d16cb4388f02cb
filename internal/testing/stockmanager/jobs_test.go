package stockmanager_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/testing/stockmanager"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
)

//stepmux:faults manager | 80 jobs over a stock sshd, 20 at once: right exit codes, whole logs, nothing left
func TestEightyJobsOfAStockManagerEndWithTheRightExitCodes(t *testing.T) {
	const jobs, atOnce = 80, 20
	v := newVM(t, remotetest.ShortTemp(t))
	numbers := make(chan int)
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for n := range numbers {
				if err := v.oneOfMany(t, n); err != nil {
					t.Errorf("job %d: %v", n, err)
				}
			}
		})
	}
	for n := range jobs {
		numbers <- n
	}
	close(numbers)
	wg.Wait()
	v.requireNothingLeft(t)
}

// oneOfMany runs job n: one of four ends with success, one fails, one is cancelled, and one has much to say.
func (v *vm) oneOfMany(t *testing.T, n int) error {
	log := &announcedLog{text: "up\n", announced: make(chan struct{})}
	want := stockmanager.Result{State: runnerproto.Status_success}
	said := fmt.Sprintf("job %d speaks\n", n)
	job := v.job(fmt.Sprint(n), fmt.Sprintf("echo job %d speaks", n))
	switch n % 4 {
	case 1:
		code := 1 + n%255
		job = v.job(fmt.Sprint(n), fmt.Sprintf("echo job %d speaks; exit %d", n, code))
		want = stockmanager.Result{State: runnerproto.Status_failure, ExitCode: code}
	case 2:
		job = v.job(fmt.Sprint(n), "echo up; exec sleep 600")
		job.Cancel, said = log.announced, "up\n"
		want.State = runnerproto.Status_cancelled
	case 3:
		job = v.job(fmt.Sprint(n), fmt.Sprintf("head -c 1000000 /dev/zero | tr '\\0' x; echo; echo job %d speaks", n))
		said = strings.Repeat("x", 1_000_000) + "\n" + said
	}
	job.Log = log
	result, err := v.Execute(sshtest.Within(t), job)
	if err != nil {
		return fmt.Errorf("%w; log: %.1000s", err, log.String())
	}
	result.Message = ""
	if result != want {
		return fmt.Errorf("it ended with %+v, want %+v; log: %.1000s", result, want, log.String())
	}
	said = "Running step \"step\"\n" + said
	if text := log.String(); !strings.HasSuffix(text, said) || strings.Contains(text, "step-runner: ") {
		return fmt.Errorf("it has another log: %.1000s", text)
	}
	return nil
}

// announcedLog is a log that closes announced when it has the text.
type announcedLog struct {
	sshtest.Log
	text      string
	announced chan struct{}
	once      sync.Once
}

// Write implements io.Writer.
func (l *announcedLog) Write(p []byte) (int, error) {
	n, err := l.Log.Write(p)
	if strings.Contains(l.String(), l.text) {
		l.once.Do(func() { close(l.announced) })
	}
	return n, err
}

//stepmux:faults manager | No more than one line of ours in the log of a job besides the marker and the steps
func TestStockManagersLogHasOneLineMoreThanTheJob(t *testing.T) {
	log := regexp.MustCompile(`^(WARNING: [^\n]* differs from the manager version [^\n]*\n)?` +
		`step-runner is listening on socket (/\S+)\nRunning step "step"\nhello\n$`)
	v := newVM(t, remotetest.ShortTemp(t))
	_, text := v.run(t, v.job("1", "echo hello"))
	require.Regexp(t, log, text)
	require.NotEmpty(t, log.FindStringSubmatch(text)[1], "the test's manager does not compare versions")

	wrapped := newVM(t, remotetest.ShortTemp(t))
	wrapped.install(t, "gitlab-runner",
		`exec "$(dirname "$0")/stepmux-vm" --as gitlab-runner --report-version 19.4.0 "$@"`)
	_, text = wrapped.run(t, wrapped.job("1", "echo hello"))
	require.Regexp(t, log, text)
	require.Empty(t, log.FindStringSubmatch(text)[1])
	require.Equal(t, wrapped.Temp, filepath.Dir(filepath.Dir(log.FindStringSubmatch(text)[2])), "serve has moved")
}

func TestStockManagersVariablesReachTheJobAndMaskedOnesDoNotReachItsLog(t *testing.T) {
	v := newVM(t, remotetest.ShortTemp(t))
	job := v.job("1", `echo "${{ job.TOKEN }} and $(cat "${{ job.KEY }}")"; pwd`)
	job.Variables = []*runnerproto.Variable{
		{Key: "TOKEN", Value: "t0psecret-token", Masked: true}, {Key: "KEY", Value: "in a file", File: true},
	}
	result, log := v.run(t, job)
	require.Equal(t, runnerproto.Status_success, result.State, result.Message)
	require.Contains(t, log, "[MASKED] and in a file\n"+job.BuildDir+"\n")
	require.NotContains(t, log, "t0psecret")
}

//stepmux:faults manager | A cancelled job ends within a second
func TestStockManagerCancelsAJobWithinASecond(t *testing.T) {
	v := newVM(t, remotetest.ShortTemp(t))
	var turns []int // of the job, after it was cancelled
	for n := range 5 {
		log := &announcedLog{text: "up\n", announced: make(chan struct{})}
		job := v.job(fmt.Sprint(n), "echo up; while sleep 0.05; do echo turn; done")
		job.Cancel, job.Log = log.announced, log
		result, err := v.Execute(sshtest.Within(t), job)
		require.NoError(t, err)
		require.Equal(t, runnerproto.Status_cancelled, result.State)
		turns = append(turns, strings.Count(log.String(), "turn\n"))
	}
	slices.Sort(turns)
	// Twenty take a second or more. Of several jobs, for a busy machine.
	require.Less(t, turns[len(turns)/2], 20, "%v", turns)
}

func TestNothingIsLeftOfAStockManagersJobThatIsHungUp(t *testing.T) {
	v := newVM(t, remotetest.ShortTemp(t))
	job := v.job("1", "trap '' HUP; echo up; sleep 600 & setsid sleep 600 & wait")
	wait, abort := v.start(t, job, "up\n")
	require.NoError(t, unix.Kill(-v.shell(t), unix.SIGHUP)) // as sshd sends a client's signal, to the process group
	remotetest.Eventually(t, func() bool { return len(remotetest.Names(t, v.Temp)) == 0 }, "the directory is left")
	abort() // it would look for the serve that is gone until the job's timeout
	_, err := wait()
	require.Error(t, err)
	v.requireNothingLeft(t)
}

func TestNothingIsLeftOfAStockManagersJobThatIsAborted(t *testing.T) {
	v := newVM(t, remotetest.ShortTemp(t))
	wait, abort := v.start(t, v.job("1", "echo up; sleep 600 & setsid sleep 600 & wait"), "up\n")
	abort()
	_, err := wait()
	require.Error(t, err)
	v.requireNothingLeft(t)
}

//stepmux:faults manager | Nothing is left of a job whose manager is killed, gives up, or whose shell is hung up
//stepmux:with internal/testing/stockmanager.TestNothingIsLeftOfAStockManagersJobThatIsAborted
//stepmux:with internal/testing/stockmanager.TestNothingIsLeftOfAStockManagersJobThatIsHungUp
func TestNothingIsLeftOfAStockManagerThatIsKilled(t *testing.T) {
	v := newVM(t, remotetest.ShortTemp(t))
	log := filepath.Join(t.TempDir(), "log")
	cmd := remotetest.Role(t.Context(), "manager", v.Addr, v.server.User, v.server.IdentityFile, v.Temp, v.builds, log)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	remotetest.Eventually(t, func() bool {
		text, _ := os.ReadFile(log)
		return strings.Contains(string(text), "up\n")
	}, "the job does not run")
	require.NotEmpty(t, remotetest.Names(t, v.Temp))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	v.requireNothingLeft(t)
}

// play is a manager in a process of its own, whose job does not end.
func play(role string) error {
	switch role {
	case "manager":
	case "custom":
		return custom(os.Args[1:])
	default:
		return remotetest.NoRole(role)
	}
	key, err := os.ReadFile(os.Args[3])
	if err != nil {
		return err
	}
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		return err
	}
	log, err := os.Create(os.Args[6])
	if err != nil {
		return err
	}
	manager := stockmanager.Manager{Addr: os.Args[1], Temp: os.Args[4], SSH: &ssh.ClientConfig{
		User: os.Args[2], Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	}}
	job := (&vm{builds: os.Args[5]}).job("1", "echo up; sleep 600 & setsid sleep 600 & wait")
	job.Log = log
	_, err = manager.Execute(context.Background(), job)
	return err
}

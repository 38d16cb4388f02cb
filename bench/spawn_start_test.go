package bench

import (
	"context"
	"io"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/mux"
)

// echo is the program that is started: all there is to it is its first byte.
var echo = []string{"/bin/echo", "x"}

// Why a peer does not start many at once.
const (
	maxStartups = "a stock sshd refuses most logins that come together (MaxStartups)"
	fewSessions = "a stock sshd has ten sessions on a connection"
	likeAuto    = "it is what auto takes for all but the first"

	// loginsAtOnce is how many logins are tried at once: beyond it, next to all are refused.
	loginsAtOnce = 32
)

// benchmarkFirstByte measures the start of n programs at once, to their first byte: by fork and exec on this machine,
// which nothing can beat; in a session of a shared connection and by its relay; and by the peers.
func benchmarkFirstByte(b *testing.B, n int) {
	fork := spawner{name: "fork", spawn: func() (float64, error) { return startCommand(b.Context(), echo) }}
	all := at(b, n, append([]spawner{fork}, starts(b, newVM(b))...))
	r := inTurns(b, tails.with(n), all)
	r.spawned(n, all, "fork", "relay")
}

// starts returns all ways to start a program on the VM.
func starts(b *testing.B, v *vm) []spawner {
	b.Helper()
	const rarely = 20
	conn := v.dial(b)
	relay := v.relay(b, conn)
	client := v.client(b)
	all := []spawner{
		{name: "session", spawn: func() (float64, error) { return startBy(b.Context(), conn) }},
		{name: "relay", spawn: func() (float64, error) { return startBy(b.Context(), relay) }},
		{
			name: "raw", most: loginsAtOnce, why: fewSessions, refuses: true,
			spawn: func() (float64, error) { return startRaw(client, time.Now()) },
		},
		{
			name: "fresh-dial", every: rarely, most: loginsAtOnce, why: maxStartups, refuses: true,
			spawn: func() (float64, error) { return startFresh(v) },
		},
	}
	openSSH, err := newOpenSSHClient(b, v)
	if err != nil {
		missing(b, "control-master and ssh", err)
		return all
	}
	return append(all,
		spawner{
			name: "control-master", most: loginsAtOnce, why: fewSessions, refuses: true,
			spawn: func() (float64, error) { return startCommand(b.Context(), openSSH.shared(echo)) },
		},
		spawner{
			name: "ssh", every: rarely, most: loginsAtOnce, why: maxStartups, refuses: true,
			spawn: func() (float64, error) { return startCommand(b.Context(), openSSH.alone(echo)) },
		},
	)
}

// starter is a connection or its relay.
type starter interface {
	Start(ctx context.Context, cmd mux.Command) (*mux.Process, error)
}

// startBy measures a start by s.
func startBy(ctx context.Context, s starter) (float64, error) {
	begin := time.Now()
	p, err := s.Start(ctx, mux.Command{Argv: echo})
	if err != nil {
		return 0, err
	}
	defer p.Close()
	took, err := firstByte(p, begin)
	if err != nil {
		return 0, err
	}
	if _, err := io.Copy(io.Discard, p); err != nil {
		return 0, err
	}
	return took, p.Wait(ctx)
}

// startCommand measures a command of this machine.
func startCommand(ctx context.Context, argv []string) (float64, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	begin := time.Now()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	took, err := firstByte(out, begin)
	if waitErr := cmd.Wait(); err == nil {
		err = waitErr
	}
	return took, err
}

// startFresh measures a start on a connection of its own, by the SSH library.
func startFresh(v *vm) (float64, error) {
	begin := time.Now()
	client, err := ssh.Dial("tcp", v.Addr, v.ClientConfig())
	if err != nil {
		return 0, err
	}
	defer client.Close()
	return startRaw(client, begin)
}

// startRaw measures a start in a session of the SSH library, from begin on.
func startRaw(client *ssh.Client, begin time.Time) (float64, error) {
	session, err := client.NewSession()
	if err != nil {
		return 0, err
	}
	defer session.Close()
	out, err := session.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := session.Start(echo[0] + " " + echo[1]); err != nil {
		return 0, err
	}
	took, err := firstByte(out, begin)
	if err != nil {
		return 0, err
	}
	return took, session.Wait()
}

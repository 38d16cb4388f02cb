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

// BenchmarkStart measures the start of a program, to its first byte: by fork and exec on this machine, which
// nothing can beat; in a session of a shared connection and by its relay; and by those who do it otherwise.
// Over a distance it counts round trips.
func BenchmarkStart(b *testing.B) {
	b.Run("rtt=0s", func(b *testing.B) {
		fork := candidate{name: "fork", run: func(r *results) error { return startCommand(r, "fork", echo) }}
		all := append([]candidate{fork}, starts(b, newVM(b))...)
		r := inTurns(b, all)
		r.latencies("µs", names(all)...)
		r.ratios("fork", names(all)...)
		r.ratios("relay", names(all)...)
	})
	b.Run("rtt=50ms", func(b *testing.B) {
		const rtt = 50 * time.Millisecond
		all := starts(b, newVM(b).at(b, rtt))
		r := inTurns(b, all)
		r.trips(rtt, names(all)...)
	})
}

// starts returns all ways to start a program on the VM.
func starts(b *testing.B, v *vm) []candidate {
	b.Helper()
	const rarely = 20
	conn := v.dial(b)
	all := []candidate{
		startBy(b, "session", conn),
		startBy(b, "relay", v.relay(b, conn)),
		{name: "fresh-dial", every: rarely, run: func(r *results) error { return startFresh(r, "fresh-dial", v) }},
	}
	client, err := newOpenSSHClient(b, v)
	if err != nil {
		missing(b, "control-master and ssh", err)
		return all
	}
	return append(all,
		candidate{name: "control-master", run: func(r *results) error { return startCommand(r, "control-master", client.shared(echo)) }},
		candidate{name: "ssh", every: rarely, run: func(r *results) error { return startCommand(r, "ssh", client.alone(echo)) }},
	)
}

// starter is a connection or its relay.
type starter interface {
	Start(ctx context.Context, cmd mux.Command) (*mux.Process, error)
}

// startBy measures starts by s.
func startBy(b *testing.B, name string, s starter) candidate {
	return candidate{name: name, run: func(r *results) error {
		begin := time.Now()
		p, err := s.Start(b.Context(), mux.Command{Argv: echo})
		if err != nil {
			return err
		}
		defer p.Close()
		took, err := firstByte(p, begin)
		if err != nil {
			return err
		}
		r.add(name, took)
		if _, err := io.Copy(io.Discard, p); err != nil {
			return err
		}
		return p.Wait(b.Context())
	}}
}

// startCommand measures a command of this machine.
func startCommand(r *results, name string, argv []string) error {
	cmd := exec.CommandContext(r.b.Context(), argv[0], argv[1:]...)
	begin := time.Now()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	took, err := firstByte(out, begin)
	if err != nil {
		return err
	}
	r.add(name, took)
	return cmd.Wait()
}

// startFresh measures a start on a connection of its own, by the SSH library.
func startFresh(r *results, name string, v *vm) error {
	begin := time.Now()
	client, err := ssh.Dial("tcp", v.Addr, v.ClientConfig())
	if err != nil {
		return err
	}
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		return err
	}
	out, err := session.StdoutPipe()
	if err != nil {
		return err
	}
	if err := session.Start(echo[0] + " " + echo[1]); err != nil {
		return err
	}
	took, err := firstByte(out, begin)
	if err != nil {
		return err
	}
	r.add(name, took)
	return session.Wait()
}

package bench

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/relay"
)

// benchmarkIdleMemory measures the memory of the VM's end while it has nothing to do: of a step runner that has no job
// yet, by itself and with the processes it keeps ready, of a relay, and of a step runner beside a relay, with which it
// shares the pages of the program. serve-of-relay has one process more to share them with. Each has unmapped the pages
// of its start before. Only the step runner that the relay keeps ready has not: its start is not over.
func benchmarkIdleMemory(b *testing.B) {
	r := inTurns(b, twice, []candidate{
		{name: "serve", run: func(r *results) error {
			s, err := startCommandBuild(b, &vm{tmp: sshtest.SocketDir(b)}, nil, nil)
			if err != nil {
				return err
			}
			settle()
			p, err := readProcesses()
			if err != nil {
				return err
			}
			serve := process{pid: s.serve.Process.Pid}
			return errors.Join(r.memory("serve", serve), r.memory("serve-and-its-own", p.family(serve)...), s.close())
		}},
		{name: "relay", run: func(r *results) error {
			v := &vm{tmp: sshtest.SocketDir(b)}
			stream, err := startCommandStream(b.Context(), []string{stepmux(b), "steps", "relay", "--temp-dir", v.tmp})
			if err != nil {
				return err
			}
			client, err := relay.New(b.Context(), stream, relay.Config{})
			if err != nil {
				return errors.Join(err, stream.Close())
			}
			settle()
			err = r.memory("relay", process{pid: stream.cmd.Process.Pid})
			s, started := startCommandBuild(b, v, nil, nil)
			if started != nil {
				return errors.Join(err, started, client.Close())
			}
			settle()
			err = errors.Join(err, r.memory("serve-beside-relay", process{pid: s.serve.Process.Pid}), s.close())
			return errors.Join(err, r.ofRelay(b, v, client, process{pid: stream.cmd.Process.Pid}), client.Close())
		}},
	})
	r.medians("PSS-MiB", "serve", "serve-and-its-own", "relay", "serve-beside-relay", "serve-of-relay",
		"spare-of-relay")
}

// settle waits until a process that has just started has unmapped the pages of its start, which it does after a second.
func settle() { <-time.NewTimer(1500 * time.Millisecond).C }

// ofRelay measures a step runner that the relay starts and connects to, as a manager's does, and the one that the relay
// then keeps ready for the next build.
func (r *results) ofRelay(b *testing.B, v *vm, client *relay.Relay, parent process) error {
	socket, err := wire.SocketPath(v.tmp, wire.BuildID(rand.Text()))
	if err != nil {
		return err
	}
	serve, err := client.Start(b.Context(), mux.Command{
		Argv: []string{stepmux(b), "steps", "serve", "--socket", socket}, Ready: socket,
	})
	if err != nil {
		return err
	}
	rpc, err := firstCall(b.Context(), func() (io.ReadWriteCloser, error) { return client.DialReady(b.Context(), socket) })
	if err != nil {
		return errors.Join(err, serve.Close())
	}
	var both []process
	tick := time.NewTicker(tick)
	defer tick.Stop()
	for end := time.Now().Add(sshtest.Bound); len(both) < 2 && err == nil; <-tick.C {
		var p processes
		if p, err = readProcesses(); err == nil && time.Now().After(end) {
			err = errors.New("the relay keeps no step runner ready")
		}
		both = serving(p[parent.pid])
	}
	if err == nil {
		settle()
		slices.SortFunc(both, func(x, y process) int { return x.pid - y.pid })
		err = errors.Join(r.memory("serve-of-relay", both[0]), r.memory("spare-of-relay", both[1]))
	}
	return errors.Join(err, rpc.Close(), serve.CloseWrite(), serve.Wait(b.Context()))
}

// memory adds the memory of processes together, in MiB, to the values of name.
func (r *results) memory(name string, of ...process) error {
	used, err := memory(of)
	if err == nil && used == 0 {
		err = fmt.Errorf("%s ended before its memory was measured", name)
	}
	r.add(name, used/kibi)
	return err
}

package bench

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stepmux/stepmux/internal/sshtest"
	"github.com/stepmux/stepmux/mux/relay"
)

// benchmarkIdleMemory measures the memory of the VM's end while it has nothing to do: of a step runner that has no job
// yet, by itself and with the processes it keeps ready, of a relay, and of a step runner beside a relay, with which it
// shares the pages of the program.
func benchmarkIdleMemory(b *testing.B) {
	r := inTurns(b, usual, []candidate{
		{name: "serve", run: func(r *results) error {
			s, err := startCommandBuild(b, &vm{tmp: sshtest.SocketDir(b)}, nil, nil)
			if err != nil {
				return err
			}
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
			err = r.memory("relay", process{pid: stream.cmd.Process.Pid})
			s, started := startCommandBuild(b, v, nil, nil)
			if started != nil {
				return errors.Join(err, started, client.Close())
			}
			return errors.Join(err, r.memory("serve-beside-relay", process{pid: s.serve.Process.Pid}), s.close(), client.Close())
		}},
	})
	r.medians("PSS-MiB", "serve", "serve-and-its-own", "relay", "serve-beside-relay")
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

package relay

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/internal/wire"
)

func TestRelayStartsCommandsAndLines(t *testing.T) {
	home, dir := remotetest.ShortTemp(t), remotetest.ShortTemp(t)
	t.Setenv("HOME", home)
	t.Setenv("SHELL", "/bin/sh")
	t.Setenv("INHERITED", "1")
	require.NoError(t, os.Mkdir(filepath.Join(home, "sub"), 0o700))
	program := filepath.Join(dir, "tool")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho tool in $PWD"), 0o700))
	r := startRelay(t)
	sh := func(script string) []string { return []string{"sh", "-c", script} }
	for name, test := range map[string]struct {
		request wire.RelayStart
		want    result
	}{
		"by name":             {wire.RelayStart{Argv: []string{"echo", "", "a b", "*"}}, result{out: " a b *\n"}},
		"by path":             {wire.RelayStart{Argv: []string{program}, Dir: dir}, result{out: "tool in " + dir + "\n"}},
		"relative to its dir": {wire.RelayStart{Argv: []string{"./tool"}, Dir: dir}, result{out: "tool in " + dir + "\n"}},
		"in a PATH it brings": {
			wire.RelayStart{Argv: []string{"tool"}, Env: []string{"PATH=/bin:/usr/bin:" + dir}},
			result{out: "tool in " + home + "\n"},
		},
		"in a relative PATH": {
			wire.RelayStart{Argv: []string{"tool"}, Dir: dir, Env: []string{"PATH=/bin:/usr/bin:."}},
			result{out: "tool in " + dir + "\n"},
		},
		"a line": {
			wire.RelayStart{Line: "echo $0; exit 4"}, result{out: "sh\n", exit: wire.RelayExit{Status: 4}},
		},
		"at home":          {wire.RelayStart{Argv: []string{"pwd"}}, result{out: home + "\n"}},
		"relative to home": {wire.RelayStart{Argv: []string{"pwd"}, Dir: "sub"}, result{out: home + "/sub\n"}},
		"with an environment": {
			wire.RelayStart{Argv: sh("echo $A $INHERITED"), Env: []string{"A=b", "INHERITED=2"}}, result{out: "b 2\n"},
		},
		"with stderr": {
			wire.RelayStart{Argv: sh("echo a; echo b >&2; exit 255")}, result{"a\n", "b\n", wire.RelayExit{Status: 255}},
		},
		"killed":                {wire.RelayStart{Argv: sh("kill -KILL $$")}, result{exit: wire.RelayExit{Signal: "KILL"}}},
		"killed by a real-time": {wire.RelayStart{Argv: sh("kill -40 $$")}, result{exit: wire.RelayExit{Signal: "40"}}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, r.startReq(t, test.request).granted(t).finish(t))
		})
	}
}

func TestRelayProcessesAreOnTheirOwn(t *testing.T) {
	// The relay is started as a careless login would: with a file open and signals ignored.
	r := launchRelay(t, time.Minute)
	extra, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer extra.Close()
	r.cmd.ExtraFiles = []*os.File{extra}
	r.cmd.Args = append([]string{"sh", "-c", `trap '' HUP INT PIPE USR1; exec "$0" "$@"`, r.cmd.Path}, r.cmd.Args[1:]...)
	r.cmd.Path = "/bin/sh"
	r.manager = manage(t, r.stdin, r.stdout(t))
	got := r.sh(t, `echo $$; cut -d' ' -f5,6 /proc/$$/stat; ls /proc/$$/fd
		for set in SigBlk SigIgn; do # less 32 and 33, glibc's own, which its posix_spawn ignores: make's, say
			mask=$(sed -n "s/^$set:\t//p" /proc/$$/status)
			echo $set: $(printf %016x $((0x$mask & ~0x180000000)))
		done`).finish(t)
	lines := strings.Fields(got.out)
	pid := lines[0]
	require.Equal(
		t,
		[]string{pid, pid, pid, "0", "1", "2", "SigBlk:", "0000000000000000", "SigIgn:", "0000000000000000"},
		lines,
		"session, group, descriptors, signals",
	)
}

func TestRelayRefusesACommandThatCannotStart(t *testing.T) {
	dir := remotetest.ShortTemp(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data"), []byte("data"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "orphan"), []byte("#!/no/such/interpreter\n"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "text"), []byte("echo\n"), 0o700))
	r := startRelay(t)
	for name, test := range map[string]struct {
		request wire.RelayStart
		code    wire.RelayCode
		want    string
	}{
		"a missing program": {
			wire.RelayStart{Argv: []string{"no-such-program"}},
			wire.RelayNotFound,
			`"no-such-program": no directory of the PATH`,
		},
		"a missing path":        {wire.RelayStart{Argv: []string{"/no/such"}}, wire.RelayNotFound, "no such file"},
		"a missing interpreter": {wire.RelayStart{Argv: []string{dir + "/orphan"}}, wire.RelayNotFound, "interpreter"},
		"a missing directory": {
			wire.RelayStart{Argv: []string{"true"}, Dir: "/no/such"},
			wire.RelayNotFound,
			`working directory "/no/such": no such file`,
		},
		"a file as directory": {
			wire.RelayStart{Argv: []string{"true"}, Dir: dir + "/data"}, wire.RelayNotFound, "not a directory",
		},
		"no program": {wire.RelayStart{Argv: []string{dir + "/data"}}, wire.RelayFailed, "permission denied"},
		"nothing executable": {
			wire.RelayStart{Argv: []string{"data"}, Env: []string{"PATH=" + dir}}, wire.RelayFailed, "permission denied",
		},
		"a script without #!": {wire.RelayStart{Argv: []string{dir + "/text"}}, wire.RelayFailed, "no interpreter"},
		"too long an argument": {
			wire.RelayStart{Argv: []string{"true", remotetest.Repeat(200 << 10)}},
			wire.RelayFailed,
			"pass what is large on stdin",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r.startReq(t, test.request).refused(t, test.code, test.want)
		})
	}
	for name, message := range map[string][]byte{
		"an unknown request": {9, 0, 0, 0},
		"too large":          {1, 0xff, 0xff, 0xff},
		"malformed":          {2, 0, 0, 1, 7},
	} {
		t.Run(name, func(t *testing.T) {
			r.raw(t, message).refused(t, wire.RelayInvalid, "relay protocol error")
		})
	}
	require.Equal(t, "fine\n", r.sh(t, "echo fine").finish(t).out, "the others go on")
}

func TestRelayPassesAllOfStdinAndStdoutOn(t *testing.T) {
	r := startRelay(t)
	c := r.sh(t, "cat; cat >&2 </dev/null")
	data := []byte(remotetest.Repeat(10 << 20))
	// As a manager has to: never more under way than the window.
	room := make(chan int, 1<<20)
	room <- wire.RelayProcessWindow
	var sender sync.WaitGroup
	sender.Go(func() {
		have := 0
		for rest := data; len(rest) > 0; {
			for have == 0 {
				have = <-room
			}
			n := min(len(rest), have, wire.MaxRelayFrame)
			c.Write(wire.AppendFrame(nil, wire.FrameData, rest[:n]))
			rest, have = rest[n:], have-n
		}
		c.Write(wire.AppendFrame(nil, wire.FrameEnd, nil))
	})
	sum, length := sha256.New(), 0
	for {
		kind, payload := c.next(t)
		if kind == wire.FrameEnd {
			break
		}
		if kind == wire.FrameCredit {
			credit, err := wire.ParseRelayCredit(payload)
			require.NoError(t, err)
			require.Equal(t, wire.FrameData, credit.Kind)
			room <- int(credit.N)
			continue
		}
		length += len(payload)
		sum.Write(payload)
		c.grant(t, kind, len(payload))
	}
	sender.Wait()
	want := sha256.Sum256(data)
	require.Equal(t, len(data), length)
	require.Equal(t, want[:], sum.Sum(nil))
	kind, _ := c.next(t)
	require.Equal(t, wire.FrameExit, kind)
}

func TestRelayDropsStdinThatIsNotWanted(t *testing.T) {
	r := startRelay(t)
	c := r.sh(t, "exec <&-; echo closed; sleep 1000")
	require.Equal(t, "closed", c.line(t))
	granted := 0
	for granted < 4*wire.RelayProcessWindow { // or the manager would be held up
		c.send(t, wire.FrameData, remotetest.Repeat(wire.MaxRelayFrame))
		c.send(t, wire.FrameData, remotetest.Repeat(wire.MaxRelayFrame))
		kind, payload := c.next(t)
		require.Equal(t, wire.FrameCredit, kind)
		credit, err := wire.ParseRelayCredit(payload)
		require.NoError(t, err)
		granted += int(credit.N)
	}
	c.send(t, wire.FrameSignal, "KILL")
	require.Equal(t, "KILL", c.finish(t).exit.Signal)
}

func TestRelayStdinThatIsNotReadHoldsUpNoSignal(t *testing.T) {
	r := startRelay(t)
	c := r.sh(t, "trap 'echo got it; exit 5' USR1; echo ready; while :; do sleep 0.01; done")
	require.Equal(t, "ready", c.line(t))
	for range wire.RelayProcessWindow / wire.MaxRelayFrame {
		c.send(t, wire.FrameData, remotetest.Repeat(wire.MaxRelayFrame))
	}
	c.send(t, wire.FrameEnd, "")
	c.send(t, wire.FrameSignal, "NONE")
	c.send(t, wire.FrameSignal, "USR1")
	got := c.finish(t)
	require.Equal(t, "got it\n", got.out)
	require.Equal(t, wire.RelayExit{Status: 5}, got.exit)
	remotetest.Eventually(
		t,
		func() bool { return strings.Contains(r.stderr.String(), `ignored a signal "NONE"`) },
		"a notice",
	)
}

func TestRelayStdoutThatIsNotReadHoldsUpNoOtherStream(t *testing.T) {
	r := startRelay(t)
	flood := r.sh(t, `yes & while read -r line; do echo "$line" >&2; done; kill $!`)
	stdout := 0
	for stdout < wire.RelayProcessWindow {
		kind, payload := flood.next(t)
		require.Equal(t, wire.FrameData, kind)
		stdout += len(payload)
	}
	require.Equal(t, wire.RelayProcessWindow, stdout, "all that goes without a credit")
	flood.send(t, wire.FrameData, "hello\n")
	kind, payload := flood.next(t)
	require.Equal(t, wire.FrameStderr, kind)
	require.Equal(t, "hello\n", string(payload))
	require.Equal(t, "fine\n", r.sh(t, "echo fine").finish(t).out, "nor other streams")

	full := r.sh(t, "head -c $0 /dev/zero; exit 6", fmt.Sprint(wire.RelayProcessWindow))
	for {
		kind, payload := full.next(t)
		if kind == wire.FrameExit {
			require.Equal(t, byte(6), payload[0], "without a credit")
			break
		}
	}
	flood.send(t, wire.FrameEnd, "")
	for range 4 {
		flood.grant(t, wire.FrameData, wire.MaxRelayFrame)
	}
	require.Equal(t, wire.RelayExit{}, flood.finish(t).exit)
}

func TestRelayGoesOnWhileAStreamIsNeverRead(t *testing.T) {
	r := startRelay(t)
	for range 20 {
		r.sh(t, "yes & yes >&2")
		r.sh(t, "cat")
		s, err := r.session.OpenStream() // says nothing at all
		require.NoError(t, err)
		defer s.Close()
	}
	require.Equal(t, "fine\n", r.sh(t, "echo fine").finish(t).out)
}

func TestRelayProcessEndsWithItsStream(t *testing.T) {
	end := map[string]func(t *testing.T, c *call){
		"closed":          func(t *testing.T, c *call) { require.NoError(t, c.Close()) },
		"an unknown kind": func(t *testing.T, c *call) { c.send(t, '?', "") },
		"not from us":     func(t *testing.T, c *call) { c.send(t, wire.FrameExit, "") },
		"16 MiB": func(t *testing.T, c *call) {
			_, err := c.Write([]byte{'D', 0xff, 0xff, 0xff})
			require.NoError(t, err)
		},
		"half a frame": func(t *testing.T, c *call) {
			_, err := c.Write([]byte{'D', 0, 1, 0, 'x'})
			require.NoError(t, err)
			require.NoError(t, c.Close())
		},
		"a long signal":   func(t *testing.T, c *call) { c.send(t, wire.FrameSignal, remotetest.Repeat(10_000)) },
		"an end of 1":     func(t *testing.T, c *call) { c.send(t, wire.FrameEnd, "x") },
		"a wrong credit":  func(t *testing.T, c *call) { c.send(t, wire.FrameCredit, "x") },
		"too much credit": func(t *testing.T, c *call) { c.grant(t, wire.FrameData, wire.RelayProcessWindow) },
		"too much stderr": func(t *testing.T, c *call) { c.grant(t, wire.FrameStderr, wire.RelayProcessWindow) },
		"two ends": func(t *testing.T, c *call) {
			c.send(t, wire.FrameEnd, "")
			c.send(t, wire.FrameEnd, "")
		},
		"too much stdin": func(t *testing.T, c *call) {
			for range 3 * wire.RelayProcessWindow / wire.MaxRelayFrame {
				c.send(t, wire.FrameData, remotetest.Repeat(wire.MaxRelayFrame))
			}
		},
	}
	for name, end := range end {
		t.Run(name, func(t *testing.T) {
			r := startRelay(t)
			// SIGTERM is for the whole group, and whoever wants to can say goodbye.
			gone := filepath.Join(r.tmp, "gone")
			c := r.sh(
				t,
				`trap 'echo bye >"$1"; exit' TERM; sh -c 'echo $$; exec sleep 1000' & while :; do sleep 0.01; done`,
				gone,
			)
			pid := c.pid(t)
			end(t, c)
			if _, err := io.Copy(io.Discard, c); err != nil {
				require.NoError(t, err)
			}
			remotetest.Eventually(t, func() bool { return !running(pid) && len(r.children(t)) == 0 }, "the group")
			_, err := os.Stat(gone)
			require.NoError(t, err)
			require.Equal(t, "fine\n", r.sh(t, "echo fine").finish(t).out, "the others go on")
		})
	}
}

func TestRelaySendsTheExitToAManagerThatHasClosedItsEnd(t *testing.T) {
	r := startRelay(t)
	c := r.sh(t, `trap 'echo bye; exit 9' TERM; echo ready; while :; do sleep 0.01; done`)
	require.Equal(t, "ready", c.line(t))
	require.NoError(t, c.Close())
	for _, want := range []string{"D: bye\n", "E: ", "X: \x09\x00\x00\x00\x00\x00\x00"} {
		kind, payload := c.next(t)
		for kind == wire.FrameStderr { // the shell's, of what else was terminated
			kind, payload = c.next(t)
		}
		require.Equal(t, want, fmt.Sprintf("%c: %s", kind, payload))
	}
	c.ended(t)
}

func TestRelayGivesTheWholeGroupItsGrace(t *testing.T) {
	r := startRelay(t)
	path := filepath.Join(r.tmp, "done")
	c := r.sh(
		t,
		`sh -c 'trap "sleep 0.3; echo done >\"$1\"; exit" TERM; echo ready; while :; do sleep 0.01; done' sh "$1" >&2 & wait`,
		path,
	)
	kind, _ := c.next(t)
	require.Equal(t, wire.FrameStderr, kind)
	require.NoError(t, c.Close())
	_, err := io.Copy(io.Discard, c)
	require.NoError(t, err)
	require.FileExists(t, path, "the leader has ended at once, the other has not")
}

func TestRelayKillsAProcessThatIgnoresSIGTERM(t *testing.T) {
	for name, grace := range map[string]time.Duration{"after the grace": 20 * time.Millisecond, "at once": -1} {
		t.Run(name, func(t *testing.T) {
			r := launchRelay(t, grace)
			r.manager = manage(t, r.stdin, r.stdout(t))
			c := r.sh(t, `trap '' TERM; sh -c 'while :; do sleep 0.01; done' & echo $!; while :; do sleep 0.01; done`)
			pid := c.pid(t)
			require.NoError(t, c.Close())
			_, err := io.Copy(io.Discard, c)
			require.NoError(t, err)
			remotetest.Eventually(t, func() bool { return !running(pid) && len(r.children(t)) == 0 }, "the group")
		})
	}
}

func TestRelayDoesNotWaitForProcessesLeftBehind(t *testing.T) {
	r := startRelay(t)
	for name, script := range map[string]string{
		"holding the output":      `sleep 1000 & echo $!; exit 8`,
		"without the output":      `sleep 1000 >/dev/null 2>&1 & echo $!; exit 8`,
		"writing and writing":     `(while echo on >&2; do sleep 0.001; done) & echo $!; exit 8`,
		"without its own parents": `(sleep 1000 & echo $!); exit 8`,
	} {
		t.Run(name, func(t *testing.T) {
			got := r.sh(t, script).finish(t)
			require.Equal(t, wire.RelayExit{Status: 8}, got.exit)
			var pid int
			_, err := fmt.Sscan(got.out, &pid)
			require.NoError(t, err)
			remotetest.Eventually(t, func() bool { return !running(pid) }, "killed")
		})
	}
	// It says that it has left the group, and only then the shell ends.
	c := r.sh(t, `setsid sh -c 'echo $$; exec sleep 1000' & read -r x; exit 8`)
	pid := c.pid(t)
	c.send(t, wire.FrameData, "end\n")
	require.Equal(t, wire.RelayExit{Status: 8}, c.finish(t).exit)
	remotetest.Eventually(t, func() bool { return slices.Equal(r.children(t), []string{strconv.Itoa(pid)}) },
		"what is on its own lives on, and the others are reaped")
	require.NoError(t, r.stdin.Close())
	r.requireExit(t, 0, "")
	require.False(t, running(pid), "until the relay's end")
}

func TestRelayReapsOrphans(t *testing.T) {
	r := startRelay(t)
	got := r.sh(t, `for i in 1 2 3 4 5 6 7 8 9 10; do setsid sh -c 'sleep 0.05; exit 1' >/dev/null 2>&1 & done`).finish(t)
	require.Equal(t, wire.RelayExit{}, got.exit)
	remotetest.Eventually(t, func() bool { return len(r.children(t)) == 0 }, "reaped")
}

func TestRelayStartsAThousandProcessesAtOnce(t *testing.T) {
	r := startRelay(t)
	require.Equal(t, "warm\n", r.sh(t, "echo warm").finish(t).out)
	files := r.files(t)
	const n = 1000
	calls := make([]*call, n)
	var all sync.WaitGroup
	for i := range calls {
		calls[i] = r.startReq(
			t,
			wire.RelayStart{Argv: []string{"sh", "-c", "read -r x; echo $x; exit $0", fmt.Sprint(i % 100)}},
		)
	}
	for i, c := range calls {
		c.granted(t)
		all.Go(func() { c.Write(wire.AppendFrame(nil, wire.FrameData, fmt.Appendln(nil, i))) })
	}
	all.Wait()
	for i, c := range calls {
		require.Equal(t, result{out: fmt.Sprintln(i), exit: wire.RelayExit{Status: uint8(i % 100)}}, c.finish(t))
	}
	remotetest.Eventually(t, func() bool { return len(r.children(t)) == 0 }, "no zombies")
	remotetest.Eventually(t, func() bool { return r.files(t) <= files }, "no files")
}

func TestRelayServesThousandsOfTinyStreams(t *testing.T) {
	r := startRelay(t)
	ln, path := listenIn(t, r.tmp, "b")
	var server sync.WaitGroup
	server.Go(func() {
		for {
			conn, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			server.Go(func() {
				defer conn.Close()
				io.Copy(conn, conn)
			})
		}
	})
	require.Equal(t, "warm\n", r.sh(t, "echo warm").finish(t).out)
	files := r.files(t)
	const n = 2000
	calls := make([]*call, n)
	for i := range calls {
		calls[i] = r.connectReq(t, wire.RelayConnect{Path: path})
		calls[i].send(t, wire.FrameData, fmt.Sprint(i)) // need not wait
		calls[i].send(t, wire.FrameEnd, "")
	}
	for i, c := range calls {
		c.granted(t)
		kind, payload := c.next(t)
		require.Equal(t, wire.FrameData, kind)
		require.Equal(t, fmt.Sprint(i), string(payload))
		kind, _ = c.next(t)
		require.Equal(t, wire.FrameEnd, kind)
		c.ended(t)
	}
	remotetest.Eventually(t, func() bool { return r.files(t) <= files && r.session.NumStreams() == 0 }, "nothing left")
	ln.Close()
	server.Wait()
}

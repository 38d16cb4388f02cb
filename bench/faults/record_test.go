package faults

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

func TestAJournalGoesOnWhereItStopped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "journal")
	j, err := OpenJournal[Result](path)
	require.NoError(t, err)
	one := Result{
		Round: 3, Kind: "cut", Route: "auto", Faults: 2, EndMS: []float64{1.5},
		Findings: []Finding{{What: Orphan}},
	}
	require.NoError(t, j.Add(one))
	require.NoError(t, j.Close())
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"round":4,"ki`) // killed while it wrote
	require.NoError(t, err)
	require.NoError(t, f.Close())

	j, err = OpenJournal[Result](path)
	require.NoError(t, err)
	require.Equal(t, []Result{one}, j.All())
	require.NoError(t, j.Add(Result{Round: 4}))
	require.NoError(t, j.Close())
	all, err := ReadJournal[Result](path)
	require.NoError(t, err)
	require.Equal(t, []Result{one, {Round: 4}}, all)
}

func TestResultsAreAddedUp(t *testing.T) {
	all := tallyBy([]Result{
		{Kind: "cut", Route: "auto", Faults: 1, Builds: 3, Lost: 2, EndMS: []float64{3, 1}, CleanMS: 9},
		{
			Kind: "cut", Route: "relay", Faults: 2, Builds: 4, Lost: 1, EndMS: []float64{2}, CleanMS: 4,
			Findings: []Finding{{What: Orphan}, {What: Orphan}},
		},
		{Kind: "stall", Route: "auto", Faults: 1, Builds: 1},
	}, func(r Result) (Kind, string) { return r.Kind, "" })
	require.Len(t, all, 2)
	cut := all[0]
	require.Equal(t, []any{Kind("cut"), 2, 3, 7, 3}, []any{cut.Kind, cut.Rounds, cut.Faults, cut.Builds, cut.Lost})
	require.Equal(t, []float64{2, 3, 9}, []float64{cut.EndP50, cut.EndMax, cut.CleanMax})
	require.Equal(t, map[string]int{Orphan: 2}, cut.Wrong)
}

func TestOpenConnectionsOfAProcessAreCounted(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	addr := netip.MustParseAddrPort(l.Addr().String())
	require.Zero(t, connectionsTo(addr, os.Getpid()))
	for n := range 3 {
		nc, err := net.Dial("tcp", addr.String())
		require.NoError(t, err)
		defer nc.Close()
		require.Equal(t, n+1, connectionsTo(addr, os.Getpid()))
	}
	require.Zero(t, connectionsTo(addr, os.Getppid()), "they are this process's")

	far, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, far.Close())
	require.Eventually(t, func() bool { return connectionsTo(addr, os.Getpid()) == 2 }, sshtest.Bound, time.Millisecond,
		"one has ended")
}

func TestProcessesBelowOneAreFound(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "echo up; sleep 600 & read x; kill $!")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = out.Read(make([]byte, 3))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		for _, p := range below(processes(), os.Getpid()) {
			if p.parent == cmd.Process.Pid && len(p.args) == 2 && p.args[0] == "sleep" {
				return true
			}
		}
		return false
	}, victimDeadline*100, victimDeadline/100)
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
	require.Empty(t, below(processes(), cmd.Process.Pid))
}

func TestPartsOfTheVMsEndAreTold(t *testing.T) {
	init := process{args: []string{"stepmux", "__init", "4026531836.4026531834:1234:5678"}}
	serve := process{args: []string{"/opt/stepmux", "steps", "serve", "--socket", "-"}}
	shell := process{args: []string{"bash", "-c", "/opt/stepmux steps serve"}}
	require.True(t, init.is("init"))
	require.False(t, init.is("serve"))
	require.True(t, serve.is("serve"))
	require.False(t, serve.is("relay"))
	require.False(t, serve.is("init"))
	require.False(t, shell.is("serve"))
	byRelay := process{args: []string{"/proc/self/exe", "steps", "serve"}}
	require.True(t, byRelay.is("serve"))
	renamed := process{args: []string{"/opt/stepmux-1.2", "steps", "relay"}}
	require.True(t, renamed.is("relay"))
}

func TestAFitTellsGrowthFromNoise(t *testing.T) {
	var x, none, noise, growth, falling, little, conns, follows, both []float64
	for i := range 200 {
		at := float64(i) / 200
		n := float64((i*7919)%13) - 6
		k := float64((i*i/7)%11) + 5*at // there are more towards the end
		x, none = append(x, at), append(none, 0)
		noise = append(noise, 1000+n)
		growth = append(growth, 1000+100*at+n)
		falling = append(falling, 1000-100*at+n)
		little = append(little, 1000+5*at)
		conns = append(conns, k)
		follows = append(follows, 1000+21*k+n)
		both = append(both, 1000+100*at+21*k+n)
	}
	require.True(t, fitBeside(x, none, noise).Flat)
	require.False(t, fitBeside(x, none, growth).Flat)
	require.InDelta(t, 100, fitBeside(x, none, growth).Slope, 5)
	require.True(t, fitBeside(x, none, falling).Flat)
	require.True(t, fitBeside(x, none, little).Flat, "half a hundredth in all")
	require.False(t, fitBeside(x, none, follows).Flat)
	require.True(t, fitBeside(x, conns, follows).Flat, "it has grown by what connections have")
	require.InDelta(t, 100, fitBeside(x, conns, both).Slope, 5)
	require.False(t, fitBeside(x, conns, both).Flat)
	require.False(t, fitBeside(x[:3], none[:3], noise[:3]).Flat, "too little to tell")
	require.False(t, fitBeside([]float64{1, 1, 1, 1}, none[:4], []float64{1, 2, 3, 4}).Flat)
	require.False(t, fitBeside(x[:9], x[:9], growth[:9]).Flat, "time and connections cannot be told apart")
}

func TestAReportReplacesTheTablesOfAPage(t *testing.T) {
	r := Report{
		Rounds: []Result{
			{Kind: "cut", Route: "auto", Faults: 2, Builds: 3, Lost: 1, EndMS: []float64{1500}},
			{Kind: "stall", Route: "relay", Faults: 1, Builds: 1, Findings: []Finding{{What: NeedlessLoss}}},
		},
		Soak: &SoakResult{Seconds: 4200, WarmUp: 600, Builds: 9, Samples: []soakSample{
			{Seconds: 0, Heap: 9 << 20},
			{Seconds: 600, Heap: 2 << 20},
			{Seconds: 1200, Heap: 2 << 20},
			{Seconds: 1800, Heap: 2 << 20},
			{Seconds: 2400, Heap: 2 << 20},
		}},
	}
	page := "before\n" + pagePart("faults", "old") + "middle\n" + pagePart("soak", "old") + "after\n"
	once, err := r.Write(page)
	require.NoError(t, err)
	require.NotContains(t, once, "old")
	for _, text := range []string{
		"before\n<!-- faults", "-->\nafter\n", "3 faults in 2 rounds, over 4 builds (1 lost)",
		"| `cut`: the connection ends, as if the peer had closed it | 2 | 3 | 1 | 1.5 s / 1.5 s | 0 ms | 0 |",
		"| needless loss | 1 |", "| false success | 0 |", "| relay | 1 | 1 | 1 | 0 | 1 |",
		"One manager for 1h0m0s, after 10m0s to warm up, 9 builds on 10 VMs",
		"| live heap, MiB | 2.0 | 0.00 ± 0.00 | flat |",
	} {
		require.Contains(t, once, text)
	}
	again, err := r.Write(once)
	require.NoError(t, err)
	require.Equal(t, once, again)

	other, err := Report{Soak: r.Soak}.Write(page)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(other, "old"), "what was not run keeps its table")
	_, err = r.Write("a page without places")
	require.ErrorContains(t, err, "has no lines")
}

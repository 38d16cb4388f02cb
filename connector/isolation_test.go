package connector

import (
	"io"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/remote/api/runnerproto"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

func TestIsolationIsToldAsTheVMSaysItAndBounded(t *testing.T) {
	for name, test := range map[string]struct {
		job  *pb.JobState
		want program.Isolation
	}{
		"processes": {&pb.JobState{Isolation: "processes"}, program.Isolation{Level: "processes"}},
		"off, with the reason": {
			&pb.JobState{Isolation: "off", IsolationReason: "namespaces\x1b[2J\nare closed"},
			program.Isolation{Level: "off", Reason: "namespaces [2J are closed"},
		},
		"no init": {&pb.JobState{IsolationReason: "no init"}, program.Isolation{Reason: "no init"}},
		"a long reason": {
			&pb.JobState{Isolation: "off", IsolationReason: strings.Repeat("x", 1<<20)},
			program.Isolation{Level: "off", Reason: strings.Repeat("x", maxReason) + "..."},
		},
		"an older stepmux": {
			&pb.JobState{},
			program.Isolation{
				Level: "off", Reason: "the stepmux on the VM is older than this program and does not isolate builds",
			},
		},
		"a newer stepmux": {
			&pb.JobState{Isolation: "v\n" + strings.Repeat("m", 100)},
			program.Isolation{Reason: `unknown level "v\n` + strings.Repeat("m", 38) + `"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.job.Status = pb.JobState_failed // the level is told however the job went
			c := connectTo(t, &endedJob{last: test.job})
			require.Zero(t, c.Isolation())
			_, err := c.Execute(t.Context(), Job{Job: &pb.Job{Script: "false"}}, io.Discard)
			require.NoError(t, err)
			require.Equal(t, test.want, c.Isolation())
			if test.want.Level == "" {
				require.Zero(t, c.cfg.VM.Isolation(), "a level that is not known is no fact about the VM")
			} else {
				require.Equal(t, test.want, c.cfg.VM.Isolation())
			}
		})
	}
}

func TestAGitLabRunnersJobsHaveNoIsolation(t *testing.T) {
	c := connectTo(t, &endedServer{state: runnerproto.Status_success})
	_, err := c.Execute(t.Context(), Job{Job: &pb.Job{Script: "true"}}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, vmconfig.Off, c.Isolation().Level)
	require.Regexp(t, "^step-runner.* has none$", c.Isolation().Reason)
	require.Equal(t, c.Isolation(), c.cfg.VM.Isolation())
}

func TestTheFlagForALevelIsSentForNamedLevelsOnly(t *testing.T) {
	plain := []string{"stepmux", "steps", "serve", "--socket", "/s", "--secret-stdin"}
	argv := func(cfg Config) []string { return cfg.serveArgv([]string{"stepmux"}, "/s") }
	for _, level := range []vmconfig.Level{"", "auto"} {
		require.Equal(t, plain, argv(Config{Options: vmconfig.Options{Isolation: level}}))
	}
	for _, level := range []vmconfig.Level{"off", "processes", "private"} {
		got := argv(Config{Options: vmconfig.Options{Isolation: level}})
		require.Equal(t, append(plain, "--isolation", string(level)), got)
	}
	require.Equal(t, append(plain, "--build-memory", "33554432", "--build-cpus", "1.5"),
		argv(Config{Options: vmconfig.Options{Limits: vmconfig.Limits{Memory: 32 << 20, CPUs: 1.5}}}))
}

func TestAGitLabRunnerHasNoLimits(t *testing.T) {
	cfg := Config{Options: vmconfig.Options{Limits: vmconfig.Limits{PIDs: 64}}}
	err := cfg.isolates(&program.Program{Kind: program.StepRunner})
	require.ErrorContains(t, err, "limits need a stepmux on the VM, whose step runner is step-runner")
	require.NoError(t, cfg.isolates(&program.Program{Kind: program.Stepmux}))
}

func TestUsageIsThatOfTheJobsEnd(t *testing.T) {
	used := usageOf(&pb.JobState{CpuSeconds: 1.5, PeakMemoryBytes: 64 << 20, LargestProcessBytes: -1})
	require.Equal(t, program.Usage{CPU: 1.5, PeakMemory: 64 << 20}, used)
	require.Zero(t, usageOf(&pb.JobState{}), "an older one does not tell")
	// The build had no line in --output json, and stepmux_builds_cpu_seconds_total was NaN from then on.
	for _, cpu := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 1e300} {
		require.Zero(t, usageOf(&pb.JobState{CpuSeconds: cpu}), "%v", cpu)
	}
	require.Equal(t, "2.0 s of processor time, peak memory 64 MiB, largest process 1 MiB",
		used.Plus(program.Usage{CPU: 0.5, LargestProcess: 1}).String())
}

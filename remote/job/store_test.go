package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
	"github.com/stepmux/stepmux/remote/job/joblog"
	"github.com/stepmux/stepmux/remote/step/engine"
)

//stepmux:faults service | A request that is sent again while the first is under way runs the job again
//stepmux:with remote/job/service.TestManagersStepsAreTwoDocumentsAndTheSameIDTwiceIsOneJob
func TestSameJobCreatedManyTimesAtOnceRunsOnce(t *testing.T) {
	s := newStore(t, Config{})
	count := filepath.Join(t.TempDir(), "count")
	spec := script(t, "1", "echo x >> "+count)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { require.NoError(t, s.Create(spec)) })
	}
	wg.Wait()
	stat, _ := run(t, s, spec)
	require.Equal(t, Succeeded, stat.State, stat.Message)
	data, err := os.ReadFile(count)
	require.NoError(t, err)
	require.Equal(t, "x\n", string(data))
}

func TestOtherJobWithTheSameIDIsRefused(t *testing.T) {
	s := newStore(t, Config{})
	run(t, s, script(t, "1", "echo a"))
	require.ErrorIs(t, s.Create(script(t, "1", "echo b")), ErrExists)
	require.Equal(t, "a\n", read(t, follow(t, s, "1"), Stdout, 0))
}

//stepmux:faults service | A job's id with `../` in it removes any directory
//stepmux:with remote/job/service.TestManagersRunNamesTheMistakeAndRepeatsNoSecret
func TestIDNeverReachesAPath(t *testing.T) {
	s := newStore(t, Config{})
	for _, id := range []string{"../x", "/etc", ".", "", "a/b\x00c", strings.Repeat("x", 300)} {
		stat, _ := run(t, s, script(t, id, "echo $PWD"))
		require.Equal(t, Succeeded, stat.State, stat.Message)
	}
	for _, name := range dirs(t, s) {
		require.Regexp(t, `^[0-9a-f]{64}-[0-9]+$`, name)
	}
	require.Equal(t, []string{"jobs", "kept", "kept/work"}, left(t, s))
}

func TestEndOfAJobIsTheEndOfAllThatIsIts(t *testing.T) {
	s := newStore(t, Config{})
	stat, _ := run(t, s, script(t, "1", `
sleep 4722 >/dev/null 2>&1 & echo $!
touch file; mkdir -p closed/deep; touch closed/deep/file; ln -s / link; chmod 0 closed/deep closed
`))
	require.Equal(t, Succeeded, stat.State, stat.Message)
	var pid int
	_, err := fmt.Sscan(read(t, follow(t, s, "1"), Stdout, 0), &pid)
	require.NoError(t, err)
	require.ErrorIs(t, unix.Kill(pid, 0), unix.ESRCH)

	require.Equal(t, []string{"jobs", "jobs/" + dirs(t, s)[0]}, left(t, s))
}

func TestStatReportsHowAJobEnded(t *testing.T) {
	s := newStore(t, Config{})
	stat, result := run(t, s, yaml(t, "ok", "- script: printf abc; printf de >&2"))
	require.Equal(
		t,
		Stat{
			ID: "ok", State: Succeeded, Started: stat.Started, Finished: stat.Finished, Stdout: 3, Stderr: 2, Isolation: "off",
		},
		stat,
	)
	require.False(t, stat.Finished.Before(stat.Started))
	require.Equal(t, engine.Success, result.Status)

	stat, result = run(t, s, yaml(t, "bad", "- {name: a, script: exit 7}\n- {name: b, script: exit 8}"))
	require.Equal(t, Failed, stat.State)
	require.Equal(t, 7, stat.ExitCode)
	require.Equal(t, `step "a": exec: exit status 7`, stat.Message)
	require.Len(t, result.Steps, 2)

	spec := script(t, "slow", "sleep 4723")
	spec.Timeout = 50 * time.Millisecond
	stat, _ = run(t, s, spec)
	require.Equal(t, Failed, stat.State)
	require.True(t, stat.TimedOut)
	require.Contains(t, stat.Message, "timeout")

	list := s.List()
	require.Len(t, list, 3)
	require.Equal(t, []string{"ok", "bad", "slow"}, []string{list[0].ID, list[1].ID, list[2].ID})
	require.Equal(t, stat, s.List("slow", "nope", "slow")[0])
	require.Len(t, s.List("slow", "nope", "slow"), 1)
}

func TestMaxRunTimeBoundsEveryJob(t *testing.T) {
	s := newStore(t, Config{MaxRunTime: 50 * time.Millisecond})
	spec := script(t, "1", "sleep 4723")
	spec.Timeout = time.Hour
	stat, _ := run(t, s, spec)
	require.True(t, stat.TimedOut)
	require.Contains(t, stat.Message, "50ms")
}

func TestOutputBeyondTheLimitIsDroppedAndTheJobGoesOn(t *testing.T) {
	s := newStore(t, Config{OutputLimit: 1000})
	stat, _ := run(t, s, script(t, "1", "head -c 500000 /dev/zero; echo END >&2"))
	require.Equal(t, Succeeded, stat.State, stat.Message)
	f := follow(t, s, "1")
	require.Contains(t, read(t, f, Stdout, 1000), "output limit of 1000 bytes")
	require.Equal(t, "END\n", read(t, f, Stderr, 0))
}

//stepmux:faults service | A new job shows the log of an old one with its id
//stepmux:with remote/job.TestRemovedJobGoesWithItsLastFollower, remote/job.TestNewStoreRemovesTheJobsOfAnOldOne
func TestCancelledJobIsKeptAndThenRemovedByTheNextCancel(t *testing.T) {
	s := newStore(t, Config{Grace: patience})
	require.NoError(t, s.Create(yaml(t, "1", `
- {name: a, script: "trap 'echo cleanup; exit 0' TERM; echo ready; sleep 4724 & wait"}
- {name: b, script: echo not-run}
`)))
	f := follow(t, s, "1")
	awaitOutput(t, f)
	s.Cancel("1", false)
	s.Cancel("1", false)
	s.Cancel("nope", false)
	stat, result, err := f.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, Cancelled, stat.State)
	require.Equal(t, "the job was cancelled", stat.Message)
	require.Equal(t, engine.Skipped, result.Steps[1].Status)
	require.Equal(t, "ready\ncleanup\n", read(t, f, Stdout, 0))
	require.Len(t, s.List(), 1)

	f.Close()
	s.Cancel("1", false)
	require.Empty(t, s.List())
	require.Empty(t, dirs(t, s))
	_, err = s.Follow("1")
	require.ErrorIs(t, err, ErrNotFound)
	s.Cancel("1", true)

	// The id is free again, and an old run's output is not the new one's.
	run(t, s, script(t, "1", "echo new"))
	require.Equal(t, "new\n", read(t, follow(t, s, "1"), Stdout, 0))
}

func TestCancelUsesTheGraceOfTheJob(t *testing.T) {
	s := newStore(t, Config{Grace: time.Hour})
	spec := script(t, "1", "trap '' TERM; echo ready; sleep 4725; sleep 4725")
	spec.Grace = 50 * time.Millisecond
	require.NoError(t, s.Create(spec))
	f := follow(t, s, "1")
	awaitOutput(t, f)
	s.Cancel("1", false)
	stat, _, err := f.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, Cancelled, stat.State)
}

func TestCancelByForceKillsAtOnce(t *testing.T) {
	s := newStore(t, Config{Grace: time.Hour})
	require.NoError(t, s.Create(yaml(t, "1", `
- {name: a, script: "trap '' TERM; echo ready; sleep 4725; sleep 4725"}
- {name: b, script: echo not-run, when: always}
`)))
	f := follow(t, s, "1")
	awaitOutput(t, f)
	s.Cancel("1", false)
	s.Cancel("1", true)
	stat, _, err := f.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, Cancelled, stat.State)
	require.Equal(t, "ready\n", read(t, f, Stdout, 0))
}

func TestCancelRightAfterCreateIsNotLost(t *testing.T) {
	s := newStore(t, Config{Grace: patience})
	for i := range 20 {
		id := fmt.Sprint(i)
		require.NoError(t, s.Create(script(t, id, "sleep 4725")))
		f := follow(t, s, id)
		s.Cancel(id, i%2 == 0)
		stat, _, err := f.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, Cancelled, stat.State)
	}
}

func TestWorkDir(t *testing.T) {
	base := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(base, "file"), nil, 0o600))
	s := newStore(t, Config{WorkBase: base})
	at := func(id, dir string) (Stat, string) {
		spec := script(t, id, "pwd; touch made")
		spec.WorkDir = dir
		stat, _ := run(t, s, spec)
		return stat, strings.TrimSpace(read(t, follow(t, s, id), Stdout, 0))
	}
	t.Run("is made, and stays", func(t *testing.T) {
		stat, dir := at("relative", "builds/group/project")
		require.Equal(t, Succeeded, stat.State, stat.Message)
		require.Equal(t, filepath.Join(base, "builds/group/project"), dir)
		require.FileExists(t, filepath.Join(dir, "made"))
	})
	t.Run("may be absolute", func(t *testing.T) {
		want := filepath.Join(t.TempDir(), "new", "dir")
		stat, dir := at("absolute", want)
		require.Equal(t, Succeeded, stat.State, stat.Message)
		require.Equal(t, want, dir)
	})
	t.Run("is a fresh one if empty", func(t *testing.T) {
		stat, dir := at("empty", "")
		require.Equal(t, Succeeded, stat.State, stat.Message)
		require.NoDirExists(t, dir)
	})
	t.Run("may not be a file", func(t *testing.T) {
		for _, dir := range []string{"file", "file/below"} {
			stat, _ := at(dir, dir)
			require.Equal(t, Failed, stat.State)
			require.Contains(t, stat.Message, "create work_dir "+filepath.Join(base, dir))
			require.Contains(t, stat.Message, "not a directory")
		}
	})
}

func TestFollowersReadFromAnywhereWhileTheJobRuns(t *testing.T) {
	s := newStore(t, Config{})
	gate, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "go"))
	require.NoError(t, s.Create(yaml(t, "1", fmt.Sprintf(`
- {name: a, script: "printf 0123; %s; printf 4567"}
- {name: b, script: "true"}
`, gate))))
	first := follow(t, s, "1")
	require.Equal(t, "0123", awaitOutput(t, first))

	var wg sync.WaitGroup
	for offset := range int64(9) {
		wg.Go(func() {
			f := follow(t, s, "1")
			require.Equal(t, "01234567"[offset:], read(t, f, Stdout, offset))
			var events []string
			for {
				e, err := f.Event(t.Context(), len(events))
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				events = append(events, e.Name+" "+e.Status.String())
			}
			require.Equal(t, []string{"a running", "a success", "b running", "b success"}, events)
			stat, _, err := f.Wait(t.Context())
			require.NoError(t, err)
			require.Equal(t, Succeeded, stat.State)
		})
	}
	open()
	wg.Wait()

	_, err := first.ReadAt(t.Context(), Stdout, make([]byte, 1), 9)
	require.ErrorIs(t, err, joblog.ErrOffset)
	_, err = first.ReadAt(t.Context(), Stderr, make([]byte, 1), -1)
	require.ErrorIs(t, err, joblog.ErrOffset)
}

func TestFollowersAreWokenByTheirContext(t *testing.T) {
	s := newStore(t, Config{Grace: time.Millisecond})
	require.NoError(t, s.Create(script(t, "1", "sleep 4726")))
	f := follow(t, s, "1")
	cause := errors.New("the caller has left")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := f.Event(ctx, 0) // the step runs
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { _, err := f.Event(ctx, 1); require.ErrorIs(t, err, cause) })
	wg.Go(func() { _, err := f.ReadAt(ctx, Stdout, make([]byte, 1), 0); require.ErrorIs(t, err, cause) })
	wg.Go(func() { _, _, err := f.Wait(ctx); require.ErrorIs(t, err, cause) })
	cancel(cause)
	wg.Wait()
	require.Equal(t, Running, s.List()[0].State, "the job goes on")
}

func TestFailureToMakeTheJobsDirectoryFailsTheJob(t *testing.T) {
	s := newStore(t, Config{})
	s.Warm()
	require.NoError(t, os.Remove(s.dir))
	stat, result := run(t, s, yaml(t, "1", "- {name: a, script: echo}"))
	require.Equal(t, Failed, stat.State)
	require.Contains(t, stat.Message, "create job directory")
	require.Equal(t, engine.Skipped, result.Steps[0].Status)
	f := follow(t, s, "1")
	require.Empty(t, read(t, f, Stdout, 0))
	_, err := f.ReadAt(t.Context(), Stdout, make([]byte, 1), 5)
	require.ErrorIs(t, err, joblog.ErrOffset)
	_, err = f.Event(t.Context(), 0)
	require.ErrorIs(t, err, io.EOF)
}

//stepmux:faults input | A defect of stepmux: a panic fails only the job or the call in which it happens
//stepmux:with remote/step/engine.TestPanicFailsTheJobAndLeavesNoProcess
//stepmux:with remote/proc.TestWriterThatPanicsIsReportedAndEndsNothingElse
//stepmux:with remote/job/service.TestPanicInACallIsTheFailureOfThatCall
func TestPanicInOneJobHarmsNoOther(t *testing.T) {
	s := newStore(t, Config{})
	normal := s.run
	s.run = func(ctx context.Context, r *engine.Runner, p engine.Place) engine.Result {
		if p.WorkDir == "/" {
			panic("broken")
		}
		return normal(ctx, r, p)
	}
	wait, open := remotetest.Gate(t, filepath.Join(t.TempDir(), "go"))
	require.NoError(t, s.Create(script(t, "other", wait)))
	broken := script(t, "broken", "echo")
	broken.WorkDir = "/"
	stat, result := run(t, s, broken)
	require.Equal(t, Failed, stat.State)
	require.Equal(t, "internal error of the step runner: broken", stat.Message)
	require.Len(t, result.Steps, 1)
	require.Empty(t, read(t, follow(t, s, "broken"), Stdout, 0), "its logs have an end")

	open()
	stat, _, err := follow(t, s, "other").Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, Succeeded, stat.State, stat.Message)
}

func TestStoreIsBounded(t *testing.T) {
	s := newStore(t, Config{MaxJobs: 2, Grace: time.Millisecond})
	require.NoError(t, s.Create(script(t, "runs", "sleep 4727")))
	run(t, s, script(t, "old", "echo"))
	run(t, s, script(t, "new", "echo"))
	require.Empty(t, s.List("old"), "the one that ended first has gone")
	require.NoError(t, s.Create(script(t, "runs too", "sleep 4727")))
	require.ErrorIs(t, s.Create(script(t, "one more", "echo")), ErrFull)
	require.NoError(t, s.Create(script(t, "runs", "sleep 4727")), "it is there already")
}

func TestShutdownEndsAllJobsAndTakesNoNewOnes(t *testing.T) {
	s := newStore(t, Config{Grace: time.Hour})
	run(t, s, script(t, "over", "echo over"))
	require.NoError(t, s.Create(script(t, "nice", "trap 'echo cleanup; exit' TERM; echo ready; sleep 4728 & wait")))
	nice := follow(t, s, "nice")
	awaitOutput(t, nice)
	require.NoError(t, s.Shutdown(t.Context(), patience))
	require.ErrorIs(t, s.Create(script(t, "late", "echo")), ErrShutdown)
	require.NoError(t, s.Create(script(t, "over", "echo over")), "a repeated call still gets its answer")
	stat, _, err := nice.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, Cancelled, stat.State)
	require.Equal(t, "the step runner is shutting down", stat.Message)
	require.True(t, stat.System, "nobody cancelled it")
	require.Equal(t, "ready\ncleanup\n", read(t, nice, Stdout, 0))
	require.NoError(t, s.Shutdown(t.Context(), 0))
}

func TestShutdownKillsAfterTheGraceOrWithItsContext(t *testing.T) {
	stubborn := "trap '' TERM; echo ready; sleep 4729; sleep 4729"
	for name, shutdown := range map[string]func(*Store) error{
		"grace": func(s *Store) error { return s.Shutdown(context.Background(), 50*time.Millisecond) },
		"context": func(s *Store) error {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return s.Shutdown(ctx, time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, Config{})
			require.NoError(t, s.Create(yaml(t, "1", "- script: \""+stubborn+"\"\n- {script: sleep 4729, when: always}\n")))
			f := follow(t, s, "1")
			awaitOutput(t, f)
			require.NoError(t, shutdown(s))
			require.Equal(t, Cancelled, s.List()[0].State)
		})
	}
}

// Symptom: so it failed all later jobs, though there was room again.
func TestFailureToMakeTheDirectoryOfAllJobsFailsTheJob(t *testing.T) {
	s := newStore(t, Config{})
	require.NoError(t, os.WriteFile(s.dir, nil, 0o600))
	s.Warm()
	stat, _ := run(t, s, script(t, "1", "true"))
	require.Equal(t, Failed, stat.State)
	require.True(t, stat.System)
	require.Contains(t, stat.Message, "open job store: ")
	require.NoError(t, os.Remove(s.dir))
	stat, _ = run(t, s, script(t, "2", "true"))
	require.Equal(t, Succeeded, stat.State, stat.Message)
}

func TestNewStoreRemovesTheJobsOfAnOldOne(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "jobs", "x", "closed"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "jobs", "x", "closed", "file"), nil, 0o600))
	require.NoError(t, os.Chmod(filepath.Join(dir, "jobs", "x", "closed"), 0))
	s := newStore(t, Config{Dir: dir})
	s.Warm()
	require.Empty(t, dirs(t, s))
	_, err := New(Config{Dir: filepath.Join(dir, "no", "such")})
	require.ErrorContains(t, err, "open job store")
}

func TestManyJobsRunAtOnce(t *testing.T) {
	s := newStore(t, Config{})
	gate := filepath.Join(t.TempDir(), "gate")
	require.NoError(t, unix.Mkfifo(gate, 0o600))
	const jobs = 40
	for i := range jobs {
		require.NoError(t, s.Create(script(t, fmt.Sprint(i), fmt.Sprintf("echo %d; read x < %s", i, gate))))
	}
	for i := range jobs { // all of them are there before the first may end
		require.Equal(t, fmt.Sprintf("%d\n", i), awaitOutput(t, follow(t, s, fmt.Sprint(i))))
	}
	w, err := os.OpenFile(gate, os.O_RDWR, 0)
	require.NoError(t, err)
	defer w.Close()
	_, err = w.WriteString(strings.Repeat("x\n", jobs))
	require.NoError(t, err)
	for i := range jobs {
		stat, _, err := follow(t, s, fmt.Sprint(i)).Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, Succeeded, stat.State, stat.Message)
	}
}

//stepmux:faults engine | With a relative work directory commands with `${{ step_dir }}` are not found
func TestRelativeWorkDirIsMadeAbsoluteForTheStepsBelowIt(t *testing.T) {
	base := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(base, "builds", "ci"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(base, "builds", "ci", "step.yml"),
		[]byte("{}\n---\nexec: {command: ['${{ step_dir }}/run.sh', '${{ work_dir }}'], work_dir: /}\n"), 0o644))
	require.NoError(
		t,
		os.WriteFile(filepath.Join(base, "builds", "ci", "run.sh"), []byte("#!/bin/sh\necho \"$1\"\n"), 0o755),
	)
	s := newStore(t, Config{WorkBase: base})
	spec := yaml(t, "1", "- step: ./ci\n")
	spec.WorkDir = "builds"
	stat, result := run(t, s, spec)
	require.Equal(t, Succeeded, stat.State, result.Message)
	require.Equal(t, filepath.Join(base, "builds")+"\n", read(t, follow(t, s, "1"), Stdout, 0))
}

func TestFilesOfAJobAreGoneWhenItHasEnded(t *testing.T) {
	s := newStore(t, Config{})
	spec := yaml(t, "1", "- script: 'cat ${{ vars.F }} ${{ output_file }}; exit 1'\n")
	spec.Vars = []engine.Variable{{Key: "F", Value: "content\n", File: true}}
	stat, _ := run(t, s, spec)
	require.Equal(t, Failed, stat.State)
	require.Equal(t, "content\n", read(t, follow(t, s, "1"), Stdout, 0))
	require.Equal(t, []string{"jobs", "kept", "kept/work"}, left(t, s))
}

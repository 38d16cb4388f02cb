package gitlabdoor

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
)

// mark returns a mark of the job of fromLab.
func mark(text string) string { return string(jobdoor.MarkPrefix(fromLab.Marks)) + text + "\n" }

// at is when the pieces of a log were stored: the first, and one more millisecond for each next.
var at = time.Date(2026, 9, 1, 10, 11, 12, 123456789, time.UTC)

// rendered returns the trace of a job with a log, which comes in pieces.
func rendered(t *testing.T, change string, pieces ...string) string {
	t.Helper()
	_, look, err := jobOf(t, change).pipeline(fromLab)
	require.NoError(t, err)
	r := renderer{shape: look, at: at}
	r.begin()
	for i, piece := range pieces {
		r.write([]byte(piece), at.Add(time.Duration(i)*time.Millisecond))
	}
	r.finish("\x1b[32;1mJob succeeded\x1b[0;m")
	return string(r.out)
}

const inSections = `"features": {"trace_sections": true}`

// The trace is that of GitLab Runner 19.4: each line with its time and its stream, the marks of sections as entries of
// their own, the parts of a progress by carriage returns.
func TestATraceHasTimesAndSectionsAsTheRunnerOfGitLabWritesThem(t *testing.T) {
	t.Parallel()
	got := rendered(t, "{"+inSections+"}", "said before\n"+mark("0 begin")+"checked out\n",
		mark("0 success")+mark("1 begin"),
		"1%\r2%\r\x1b[0Kready\nunfinished"+mark("1 failure"), "the cache\n")
	require.Equal(t, strings.ReplaceAll(`2026-09-01T10:11:12.123456Z 00O section_start:1788257472:prepare_script{
2026-09-01T10:11:12.123456Z 00O+[36;1mPreparing environment[0;m
2026-09-01T10:11:12.123456Z 01O said before
2026-09-01T10:11:12.123456Z 00O section_end:1788257472:prepare_script{
2026-09-01T10:11:12.123456Z 00O+section_start:1788257472:get_sources{
2026-09-01T10:11:12.123456Z 00O+[36;1mGetting source from Git repository[0;m
2026-09-01T10:11:12.123456Z 01O checked out
2026-09-01T10:11:12.124456Z 00O section_end:1788257472:get_sources{
2026-09-01T10:11:12.124456Z 00O+section_start:1788257472:step_script{
2026-09-01T10:11:12.124456Z 00O+[36;1mExecuting "step_script" stage of the job script[0;m
2026-09-01T10:11:12.125456Z 01O 1%`+"\r"+`
2026-09-01T10:11:12.125456Z 01O+2%{
2026-09-01T10:11:12.125456Z 01O+ready
2026-09-01T10:11:12.125456Z 01O unfinished
2026-09-01T10:11:12.126456Z 00O section_end:1788257472:step_script{
2026-09-01T10:11:12.126456Z 00O+section_start:1788257472:cleanup_file_variables{
2026-09-01T10:11:12.126456Z 00O+[36;1mCleaning up project directory and file based variables[0;m
2026-09-01T10:11:12.126456Z 01O the cache
2026-09-01T10:11:12.126456Z 00O section_end:1788257472:cleanup_file_variables{
2026-09-01T10:11:12.126456Z 00O+[32;1mJob succeeded[0;m
`, "{", "\r\x1b[0K"), strings.NewReplacer("\x1b[36", "[36", "\x1b[0;", "[0;", "\x1b[32", "[32").Replace(got))
	log, err := gitlabtest.ReadLog([]byte(got))
	require.NoError(t, err)
	require.Equal(t, []string{"prepare_script", "get_sources", "step_script", "cleanup_file_variables"}, log.Sections)
	require.Contains(t, log.Text, "1%\r2%\r\x1b[0Kready\nunfinished\n")
}

// The sections are those of the steps in their order, and of the outcome so far.
func TestEachPartOfAJobHasItsSection(t *testing.T) {
	t.Parallel()
	const whole = `{` + inSections + `,
		"hooks": [{"name": "pre_get_sources_script", "script": ["a"]}, {"name": "post_get_sources_script", "script": ["b"]}],
		"dependencies": [{"id": 6, "token": "t", "name": "x", "artifacts_file": {"filename": "a.zip"}}],
		"steps": [{"name": "script", "script": ["make"]}, {"name": "after_script", "script": ["clean"]},
			{"name": "release", "script": ["release-cli"]}],
		"artifacts": [{"paths": ["out"], "when": "always"}, {"paths": ["log"], "when": "always"}],
		"cache": [{"key": "k", "paths": ["c"]}]}`
	for script, want := range map[string]string{
		"success": "step_release upload_artifacts_on_success archive_cache",
		"failure": "upload_artifacts_on_failure archive_cache_on_failure",
	} {
		want = "get_sources download_artifacts step_script after_script " + want
		log := ""
		for i := range 9 {
			result := "success"
			switch {
			case i == 4:
				result = script
			case i == 5:
				result = "failure" // of after_script, which changes nothing
			case i == 6 && script == "failure":
				continue // it does not run
			}
			log += mark(fmt.Sprintf("%d begin", i)) + "x\n" + mark(fmt.Sprintf("%d %s", i, result))
		}
		read, err := gitlabtest.ReadLog([]byte(rendered(t, whole, log+"saved\n")))
		require.NoError(t, err)
		require.Equal(t, strings.Fields(want), read.Sections)
	}
	run := `{` + inSections + `, "steps": [],
		"run": "[{\"name\": \"a\", \"script\": \"b\"}, {\"name\": \"b\", \"script\": \"b\"}]"}`
	read, err := gitlabtest.ReadLog([]byte(rendered(t, run, mark("1 begin")+mark("1 success")+mark("2 begin")+"x\n")))
	require.NoError(t, err)
	require.Equal(t, []string{"step_run"}, read.Sections)
}

// A server without sections gets the titles alone, and a job with FF_TIMESTAMPS: false lines without times.
func TestAServerGetsWhatItKnows(t *testing.T) {
	t.Parallel()
	const off = `"variables": [{"key": "FF_TIMESTAMPS", "value": "false"}]`
	log := mark("0 begin") + "a\r\nb\rc\n" + mark("1 begin") + "d"
	require.Equal(t, "\x1b[36;1mGetting source from Git repository\x1b[0;m\na\r\nb\rc\n"+
		"\x1b[36;1mExecuting \"step_script\" stage of the job script\x1b[0;m\nd\n\x1b[32;1mJob succeeded\x1b[0;m\n",
		rendered(t, "{"+off+"}", log))
	require.Equal(t, "section_start:1788257472:get_sources\r\x1b[0K"+
		"\x1b[36;1mGetting source from Git repository\x1b[0;m\na\n"+
		"section_end:1788257472:get_sources\r\x1b[0K\x1b[32;1mJob succeeded\x1b[0;m\n",
		rendered(t, "{"+off+","+inSections+"}", mark("0 begin")+"a\n"))
	noted := rendered(t, `{"services": [{"name": "redis:7", "alias": "a, b"}],
		"variables": [{"key": "CI_DEBUG_TRACE", "value": "true"}]}`)
	require.Contains(t, noted, "WARNING: the services redis:7 are not started: the job has no image")
	require.Contains(t, noted, "WARNING: the service redis:7 has the alias a alone, the first of a, b")
	require.Contains(t, noted, "WARNING: the variable CI_DEBUG_TRACE has no effect here")
}

// The same log gives the same trace in whatever pieces it is read: the server has a part of it already.
func FuzzATraceDoesNotDependOnThePieces(f *testing.F) {
	f.Add([]byte("a\n"+mark("0 begin")+"b\r\x1b[0K\rc"+mark("0 success")+"\r\n"), uint8(3), true)
	long := strings.Repeat("z", 2*maxEntry) + mark("0 begin")
	f.Add([]byte(strings.Repeat("x", maxEntry-1)+"\r\x1b[0Ky"+long), uint8(1), false)
	f.Add([]byte(strings.Repeat("x", maxEntry-3)+mark("0 begin")+strings.Repeat("\r", 9)), uint8(7), true)
	f.Fuzz(func(t *testing.T, log []byte, size uint8, stamps bool) {
		look := &shape{
			marks: jobdoor.MarkPrefix(fromLab.Marks), steps: []section{sourcesSection}, end: saveSection, sections: true,
			stamps: stamps,
		}
		whole := renderer{shape: look, at: at}
		whole.write(log, at)
		whole.finish("end")
		r := renderer{shape: look, at: at}
		out := []byte(nil)
		for rest := log; len(rest) > 0; {
			n := min(int(size)+1, len(rest))
			r.write(rest[:n], at)
			rest = rest[n:]
			out = append(out, r.out...)
			r = r.copy()
			require.LessOrEqual(t, len(r.line), 2*maxEntry+100)
		}
		r.finish("end")
		require.Equal(t, string(whole.out), string(append(out, r.out...)))
	})
}

// Each byte of the trace is at its offset, whatever was read before: the server says where it goes on.
func TestATraceIsReadFromAnyOffset(t *testing.T) {
	t.Parallel()
	texts := []string{
		mark("0 begin") + "one\ntw", "o\n" + mark("0 success"), strings.Repeat("a line\n", 2*maxFill/7), "\nrest\rof it",
	}
	const gap = 3 // bytes before the last piece that are not kept any more
	size := int64(gap)
	for _, text := range texts {
		size += int64(len(text))
	}
	host := jobdoor.Host{
		Log: func(_ context.Context, _ string, from int64, _ bool, take func(jobdoor.Piece) error) error {
			begin := int64(0)
			for i, text := range texts {
				if i == len(texts)-1 {
					begin += gap
				}
				end := begin + int64(len(text))
				if end > from {
					p := jobdoor.Piece{At: at.Add(time.Duration(i) * time.Second), Missing: max(begin-from, 0)}
					p.Text = []byte(text[max(from-begin, 0):])
					from = end
					if err := take(p); err != nil {
						return err
					}
				}
				begin = end
			}
			return nil
		},
		Logger: slog.New(slog.DiscardHandler),
	}
	answer, err := json.Marshal(jobOf(t, "{"+inSections+"}"))
	require.NoError(t, err)
	d := &Door{Door: jobdoor.New(jobdoor.Config{}, host)}
	task := newTask(d, &record{Job: &Job{ID: 7}, Answer: answer, Marks: fromLab.Marks, At: at})
	task.build = "b"
	task.ends("b", &jobdoor.Result{LogBytes: size})
	read := func(offset int64, follow bool, most int) string {
		var got []byte
		err := task.trace(t.Context(), offset, follow, func(text []byte) error {
			got = append(got, text...)
			if len(got) >= most {
				return errEnough
			}
			return nil
		})
		if err != nil {
			require.ErrorIs(t, err, errEnough)
		}
		return string(got)
	}
	whole := read(0, false, math.MaxInt)
	log, err := gitlabtest.ReadLog([]byte(whole))
	require.NoError(t, err)
	require.True(t, strings.Contains(log.Text, "one\ntwo\n"))
	require.True(t, strings.HasSuffix(log.Text, "...\nrest\rof it\n\x1b[32;1mJob succeeded\x1b[0;m\n"))
	require.Len(t, read(0, true, math.MaxInt), len(whole), "the reader that waits counts the same bytes")
	for offset := 0; offset < len(whole); { // as pieces are sent
		part := read(int64(offset), false, 10_000)
		require.True(t, strings.HasPrefix(whole[offset:], part), "from %d", offset)
		offset += min(len(part), 12_345) // the last piece is read again in part
	}
	for _, offset := range []int{len(whole), len(whole) - 1, 1, len(whole) / 2, 0, 100} {
		require.True(t, whole[offset:] == read(int64(offset), false, math.MaxInt), "from %d", offset)
	}
}

// shown returns the text of a trace, which the server can read.
func shown(t *testing.T, trace []byte) string {
	t.Helper()
	log, err := gitlabtest.ReadLog(trace)
	require.NoError(t, err, "%s", trace)
	return log.Text
}

// BenchmarkTrace makes the trace of a log with lines of 80 bytes.
func BenchmarkTrace(b *testing.B) {
	log := []byte(strings.Repeat(strings.Repeat("x", 79)+"\n", maxFill/80))
	b.SetBytes(int64(len(log)))
	b.ReportAllocs()
	r := renderer{shape: &shape{marks: jobdoor.MarkPrefix(fromLab.Marks), end: saveSection, sections: true, stamps: true}}
	for b.Loop() {
		r.write(log, at)
		r.out = r.out[:0]
	}
}

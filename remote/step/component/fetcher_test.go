package component

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/stepmux/stepmux/internal/filelock"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// shell is a Fetcher whose program is a script.
func shell(script string, args ...string) *Fetcher {
	return &Fetcher{Command: append([]string{"/bin/sh", "-c", script, "sh"}, args...), Dir: "/cache"}
}

func TestAFetchedStepIsLockedUntilItsRelease(t *testing.T) {
	dir := t.TempDir()
	lock, got, answer := filepath.Join(dir, "lock"), filepath.Join(dir, "request"), filepath.Join(dir, "answer")
	require.NoError(t, os.WriteFile(lock, nil, 0o600))
	told := Answer{
		Source:  Source{Kind: KindGit, Location: "https://h/r", Commit: "c", Tree: "sha256:t"},
		Version: "v1", ResolvedRef: "refs/tags/v1", Root: dir, Dir: dir + "/x", File: "f.yml", Cached: true, Lock: lock,
	}
	line, err := json.Marshal(told)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(answer, append(line, '\n'), 0o600))
	ref := &pb.Reference{Protocol: pb.Reference_git, Url: "https://h/r", Rev: "v1"}
	with := Credentials{Logins: []Login{{Server: "https://h", User: "u", Password: "p"}}}

	c, err := shell(`read -r line; echo "$line" >"$1"; cat "$2" -`, got, answer).Fetch(t.Context(), ref, with)
	require.NoError(t, err)
	want := &Component{
		Source: told.Source, Root: told.Root, Dir: told.Dir, File: told.File, Cached: true,
	}
	want.Version, want.ResolvedRef = "v1", "refs/tags/v1"
	held := c.held
	c.held = nil
	require.Equal(t, want, c)
	c.held = held
	_, err = filelock.ClaimWrite(lock)
	require.ErrorIs(t, err, filelock.ErrTaken)
	c.Release()
	claimed, err := filelock.ClaimWrite(lock)
	require.NoError(t, err)
	filelock.Release(claimed)

	text, err := os.ReadFile(got)
	require.NoError(t, err)
	var request Request
	require.NoError(t, json.Unmarshal(text, &request))
	require.Equal(t, with, request.Credentials)
	require.Equal(t, "/cache", request.Dir)
	again := &pb.Reference{}
	require.NoError(t, proto.Unmarshal(request.Reference, again))
	require.True(t, proto.Equal(ref, again))
}

func TestAProgramThatDoesNotFetchIsExplained(t *testing.T) {
	for _, test := range [][2]string{
		{`read -r x; echo '{"error":"the server does not have it"}'`, "the server does not have it"},
		{`echo "stepmux: steps fetch: it is not there" >&2; exit 3`, "exit status 3: steps fetch: it is not there"},
		{`read -r x; echo text`, "the program that fetches steps has failed: "},
		{`read -r x; printf '{}'`, "the program gave no reason"},
		{`read -r x; head -c 5000000 /dev/zero`, "the program gave no reason"},
		{`read -r x; echo '{"lock":"/no/such/lock"}'`, "keep the step in the cache: open /no/such/lock: no such file"},
		{`kill -9 $$`, "signal: killed: the program gave no reason"},
		{`read -r x; echo '{"lock":"/proc/self/mem/"}'`, "keep the step in the cache"},
	} {
		script, want := test[0], test[1]
		_, err := shell(script).Fetch(t.Context(), &pb.Reference{}, Credentials{})
		require.ErrorContains(t, err, want, script)
		var system *SystemError
		require.Equal(t, !strings.Contains(script, "does not have it"), errors.As(err, &system), script)
	}
	_, err := (&Fetcher{Command: []string{"/no/such/program"}}).Fetch(t.Context(), &pb.Reference{}, Credentials{})
	require.ErrorContains(t, err, "start the program that fetches steps: ")
	var system *SystemError
	require.ErrorAs(t, err, &system)
	_, err = shell(`read -r x; echo '{"error":"connection refused","system":true}'`).
		Fetch(t.Context(), &pb.Reference{}, Credentials{})
	require.EqualError(t, err, "connection refused")
	require.ErrorAs(t, err, &system)
	_, err = shell("").Fetch(t.Context(), &pb.Reference{Url: string(make([]byte, MaxMessage))}, Credentials{})
	require.ErrorContains(t, err, "have more than 4194304 bytes")
}

func TestTheEndOfAContextEndsTheProgramByItsInput(t *testing.T) {
	dir := t.TempDir()
	ready, ended := filepath.Join(dir, "ready"), filepath.Join(dir, "ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the job was cancelled")
	done := make(chan error, 1)
	go func() {
		fetcher := shell(`read -r x; : >"$1"; cat >/dev/null; : >"$2"`, ready, ended)
		_, err := fetcher.Fetch(ctx, &pb.Reference{}, Credentials{})
		done <- err
	}()
	require.Eventually(t, func() bool { _, err := os.Stat(ready); return err == nil }, 3*time.Minute, time.Millisecond)
	cancel(why)
	require.ErrorIs(t, <-done, why)
	require.FileExists(t, ended, "the program has ended by itself")
}

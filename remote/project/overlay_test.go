package project

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/connector/files"
	"github.com/stepmux/stepmux/internal/wire"
)

// A build has several archives, of which each is unpacked over those before it, and sent to a VM once.
func TestArchivesAreUnpackedOneOverTheOther(t *testing.T) {
	t.Parallel()
	cache, vm, sent := cacheDir(t), &files.VM{}, atomic.Int64{}
	counted := func(content map[string]string) *files.Project {
		p := packed(t, content)
		open := p.Open
		p.Open = func(ctx context.Context) (io.ReadSeekCloser, error) {
			sent.Add(1)
			return open(ctx)
		}
		return p
	}
	project, over := counted(map[string]string{"a": "1", "b": "1"}), counted(map[string]string{"b": "2", "d/c": "2"})
	last := counted(map[string]string{"b": "3"})
	for range 2 {
		b := newBuild(t, cache)
		_, _, err := vm.Place(t.Context(), b, 1, over)
		require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
		dir := ""
		for after, p := range []*files.Project{project, over, over, last} {
			for range 2 { // as after an answer that was lost
				dir, _, err = vm.Place(t.Context(), b, after, p)
				require.NoError(t, err)
			}
		}
		for name, want := range map[string]string{"a": "1", "b": "3", "d/c": "2"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			require.Equal(t, want, string(text))
		}
		_, _, err = vm.Place(t.Context(), b, 1, last)
		require.Equal(t, codes.AlreadyExists, status.Code(err), "%v", err)
		_, _, err = vm.Place(t.Context(), b, 4, nil)
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
		_, _, err = vm.Place(t.Context(), b, wire.MaxArchives, last)
		require.ErrorContains(t, err, "a build has at most 10001")
		_, _, err = vm.Place(t.Context(), b, -1, last)
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	}
	require.EqualValues(t, 3, sent.Load())
}

// Artifacts that later builds get do not go back to the VM on which they were made.
func TestKeptArtifactsStayOnTheirVM(t *testing.T) {
	t.Parallel()
	cache := cacheDir(t)
	collect := func(cache string, keep bool) *files.Project {
		b := newBuild(t, cache)
		dir, _, err := (&files.VM{}).Place(t.Context(), b, 0, nil)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "made"), []byte("text"), 0o600))
		var text []byte
		arriving := files.Artifacts{
			Paths: []string{"made", "none"}, Keep: keep, Take: func(_ context.Context, from *os.File) (err error) {
				text, err = io.ReadAll(from)
				return err
			},
		}.Collect()
		defer arriving.Close()
		_, err = arriving.Receive(t.Context(), b)
		require.NoError(t, err)
		require.Contains(t, arriving.Note, "none")
		require.NoError(t, arriving.Take(t.Context()))
		return projectOf(text)
	}
	place := func(cache string, p *files.Project) (sent bool) {
		open := p.Open
		p.Open = func(ctx context.Context) (io.ReadSeekCloser, error) {
			sent = true
			return open(ctx)
		}
		dir, _, err := (&files.VM{}).Place(t.Context(), newBuild(t, cache), 0, p)
		require.NoError(t, err)
		text, err := os.ReadFile(filepath.Join(dir, "made"))
		require.NoError(t, err)
		require.Equal(t, "text", string(text))
		return sent
	}
	require.False(t, place(cache, collect(cache, true)))
	other := cacheDir(t)
	require.True(t, place(other, collect(other, false)))
	require.True(t, place("", collect("", true)), "builds that share nothing")
	left, err := os.ReadDir(cache)
	require.NoError(t, err)
	require.Len(t, left, 1)

	b := newBuild(t, cache) // without a file that matches
	_, _, err = (&files.VM{}).Place(t.Context(), b, 0, nil)
	require.NoError(t, err)
	arriving := files.Artifacts{Paths: []string{"none"}, Keep: true}.Collect()
	defer arriving.Close()
	_, err = arriving.Receive(t.Context(), b)
	require.NoError(t, err)
	require.NoError(t, arriving.Take(t.Context()), "it is not called")
	left, err = os.ReadDir(cache)
	require.NoError(t, err)
	require.Len(t, left, 1)
}

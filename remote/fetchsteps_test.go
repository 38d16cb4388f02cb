package remote

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/fetchtest"
	"github.com/stepmux/stepmux/internal/testing/remotetest"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

func TestBuildsOfAVMFetchAStepOnce(t *testing.T) {
	root, home := t.TempDir(), fetchtest.CacheDir(t)
	h := fetchtest.ServeGit(t, root)
	r := fetchtest.NewRepository(t, filepath.Join(root, "c", "echo"))
	commit := r.Commit(
		"main",
		fetchtest.Texts(map[string]string{"steps/step.yml": "spec: {}\n---\nexec: {command: [echo, fetched]}\n"}),
	)
	tmp := remotetest.ShortTemp(t)
	for _, id := range []string{"1", "2"} {
		socket := remotetest.SocketIn(t, tmp, id)
		s := launchServe(t, socket, func(s *served) {
			s.cmd.Env = append(os.Environ(), remotetest.RoleVar+"=serve", "XDG_CACHE_HOME="+home)
		})
		s.waitReady(t)
		client := clientOf(t, socket)
		_, err := client.Run(
			t.Context(),
			&pb.RunRequest{Id: "j", Job: &pb.Job{Steps: []byte("- step: " + h.URL + "/c/echo@" + commit + "\n")}},
		)
		require.NoError(t, err)
		stdout, stderr := readOutput(t, client, "j")
		require.Equal(t, "fetched\n", stdout, stderr)
		want := pb.JobState_suceeded //nolint:misspell // so it is on the wire
		require.Equal(t, want, finalState(t, client, "j").GetStatus())
		require.NoError(t, s.stdin.Close())
		s.requireExit(t, 0, socket)
	}
	require.Equal(t, 1, h.Fetches())
	require.Len(t, remotetest.Names(t, filepath.Join(home, "stepmux-steps", "v1", "comp")), 1)
}

package gitlabdoor

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/instance/manager/jobdoor"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/gitlabtest"
)

// A job without an image gets that of the server's configuration, and one with an image keeps its own.
func TestTheImageOfAServerIsForJobsWithoutOne(t *testing.T) {
	t.Parallel()
	var text string
	d, err := NewDoor(DoorConfig{Name: "lab", URL: "https://lab", Image: "ruby:3.4"}, jobdoor.Host{
		Logger: slog.New(slog.DiscardHandler),
		Submit: func(_ context.Context, _ string, req *pb.SubmitPipelineRequest, _ jobdoor.Room) (string, error) {
			require.True(t, req.GetInImage())
			text = string(req.GetSource().GetText())
			return "p", nil
		},
	})
	require.NoError(t, err)
	for own, want := range map[string]string{"": "ruby:3.4", "node:24": "node:24"} {
		job := gitlabtest.Script("true")
		if own != "" {
			job["image"] = map[string]any{"name": own}
		}
		answer, err := json.Marshal(job)
		require.NoError(t, err)
		_, err = newTask(d, d.record(&Job{ID: 1, Answer: answer})).submit(t.Context(), nil)
		require.NoError(t, err)
		require.Contains(t, text, `"name":"`+want+`"`)
	}
}

// The server refuses every report about a job that it does not know. That was taken for a server that waits for
// acknowledgements: its questions could then be given up, and jobs be lost.
func TestAJobThatHasEndedSaysNothingAboutTheServer(t *testing.T) {
	t.Parallel()
	for _, acknowledges := range []bool{false, true} {
		fake := gitlabtest.New(gitlabtest.Config{Acknowledges: acknowledges})
		server := httptest.NewServer(fake)
		d, err := NewDoor(DoorConfig{Name: "lab", URL: server.URL}, jobdoor.Host{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		learn := func(job *Job) { require.NoError(t, newTask(d, &record{Job: job}).learn(ctx)) }
		learn(&Job{ID: 99, Token: "of-no-job"})
		require.False(t, d.learned.Load())
		fake.Add(gitlabtest.Script("true"))
		client := d.client.As(gitlabtest.RunnerToken, "r_0123456789ab")
		job, _, err := client.Request(ctx, "")
		require.NoError(t, err)
		learn(job)
		require.True(t, d.learned.Load())
		require.Equal(t, acknowledges, d.acknowledges.Load())
		cancel()
		d.client.Close()
		fake.Close()
		server.Close()
	}
}

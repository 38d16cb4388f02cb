package manager_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// fileJob reads in.txt of a project, and has the artifact out/said.
func fileJob(text []byte, digest, script string) *pb.SubmitRequest {
	j := job("cat in.txt; echo\n" + script + "\nmkdir out; cat in.txt >out/said")
	j.Project, j.ProjectBytes, j.Artifacts = digest, int64(len(text)), []string{"out"}
	return j
}

// A project that one manager was given is on a VM of another, whichever that is, and a third one has the artifacts.
func TestFilesOfAClusterAreAtEachManager(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.fileBytes = 200_000
	proxy := sshtest.Proxy(t, c.nats)
	a, b := c.member(t, proxy.Addr()), c.member(t, c.nats)
	require.Eventually(t, func() bool { return a.m.Holds() == 1 && b.m.Holds() == 1 }, sshtest.Bound, 10*time.Millisecond)
	third := c.member(t, c.nats)
	text, digest := archive(t, "in.txt", "from the project")
	wanted, err := third.keep(text, digest)
	require.NoError(t, err)
	require.Len(t, text, int(wanted))
	for _, m := range []*running{a, b, third} {
		wanted, err := m.keep(text, digest)
		require.NoError(t, err)
		require.Zero(t, wanted, "it is there")
	}
	_, err = third.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1", "vm-2"}})
	require.NoError(t, err)
	wait, open := gate(t)
	var ids []string
	for range 4 { // on both VMs
		ids = append(ids, third.submitJob(fileJob(text, digest, "echo begun\n"+wait)))
	}
	third.stop() // between the upload and the builds
	_, err = a.Undrain(t.Context(), &pb.UndrainRequest{Instances: []string{"vm-1", "vm-2"}})
	require.NoError(t, err)
	on := map[string]int{}
	for _, id := range ids {
		b.await(id, "from the project\nbegun\n")
		build, err := b.Get(t.Context(), &pb.GetRequest{Id: id})
		require.NoError(t, err)
		on[build.GetInstance()]++
	}
	require.Len(t, on, 2)
	proxy.Stall() // as one that is killed
	open()
	for _, id := range ids {
		_, build := b.wait(id, 0)
		require.Empty(t, build.GetResult().GetReason(), build.GetResult().GetMessage())
		require.Positive(t, build.GetResult().GetArtifacts())
	}
	proxy.Resume()
	last := c.member(t, c.nats)
	for _, id := range ids {
		for _, m := range []*running{b, last} {
			said, err := m.unpacked(id, "out/said")
			require.NoError(t, err)
			require.Equal(t, "from the project", said)
		}
	}
	_, err = b.unpacked("1-00000000", "out/said")
	require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
}

func TestFilesOfAClusterAreBoundedAndChecked(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.fileBytes = 4000
	m := c.member(t, c.nats)
	text, digest := archive(t, "in.txt", "from the project")
	_, err := m.keep(text, digest)
	require.NoError(t, err)
	_, err = m.keep([]byte("other"), digest[1:]+"0")
	require.ErrorContains(t, err, "changed on its way")
	_, err = m.Submit(t.Context(), fileJob(text, digest[1:]+"0", ""))
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)

	// One that no build needs stays for a while after its last use, and goes when there is need of room then.
	big, bigDigest := archive(t, "in.txt", "")
	big = append(big, make([]byte, 3800)...)
	_, err = m.keep(big, bigDigest)
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	m.m.SetRest(t, 0)
	wait, open := gate(t)
	id := m.submitJob(fileJob(text, digest, "echo begun\n"+wait))
	m.await(id, "begun\n")
	require.ErrorContains(t, m.m.SweepFiles(t, 3800), "take all the room that the manager has for them")
	_, err = m.keep(big, bigDigest)
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	open()
	_, build := m.wait(id, 0)
	require.Empty(t, build.GetResult().GetReason(), build.GetResult().GetMessage())
	require.Equal(t, 1, m.m.Projects(t))
	require.Eventually(t, func() bool { // its request leaves the queue soon
		return m.m.SweepFiles(t, 3800) == nil
	}, sshtest.Bound, 10*time.Millisecond)
	require.Zero(t, m.m.Projects(t), "no build needs it any more")

	// One that is used while others are removed stays, and so do pieces that may just be arriving.
	_, err = m.keep(text, digest)
	require.NoError(t, err)
	m.m.PutPart(t)
	require.EqualValues(t, 2, m.m.SweepAround(t, 4000, func() {
		_, err := m.keep(text, digest)
		require.NoError(t, err)
	}), "the archive and its description")
	m.m.SetRest(t, time.Hour)
	m.m.PutPart(t)
	require.EqualValues(t, 3, m.m.SweepAround(t, 4000, func() {}))
	m.m.SetRest(t, 0)
	require.Zero(t, m.m.SweepAround(t, 4000, func() {}))

	// What was damaged in NATS is an error.
	text, digest = archive(t, "in.txt", "another project")
	_, err = m.keep(text, digest)
	require.NoError(t, err)
	m.m.Damage(t, digest, false)
	second := m.submitJob(fileJob(text, digest, "true"))
	_, build = m.wait(second, 0)
	require.Equal(t, "runner_system_failure", build.GetResult().GetReason())
	require.Contains(t, build.GetResult().GetMessage(), "the archive is damaged in NATS")
	j := job("mkdir out; echo said >out/said")
	j.Artifacts = []string{"out"}
	third := m.submitJob(j)
	_, build = m.wait(third, 0)
	require.Positive(t, build.GetResult().GetArtifacts())
	m.m.Damage(t, third, true)
	_, err = m.unpacked(third, "out/said")
	require.ErrorContains(t, err, "the archive is damaged in NATS: missing of its 1 piece: 1")
	require.NotContains(t, err.Error(), "quorum", "that is another fault")
	said, err := m.unpacked(id, "out/said")
	require.NoError(t, err)
	require.Equal(t, "from the project", said)
	m.m.Damage(t, id, false)
	_, err = m.unpacked(id, "out/said")
	require.ErrorContains(t, err, "the archive is damaged in NATS: its SHA-256 is another than when it was kept")

	// A disk of the manager that does not take a project is not NATS.
	copies := filepath.Join(m.m.Dir(), "projects")
	require.NoError(t, os.RemoveAll(copies))
	_, err = m.keep(archive(t, "in.txt", "a third project"))
	require.ErrorContains(t, err, "no such file or directory")
	require.NotContains(t, err.Error(), "quorum")
	require.NoError(t, os.Mkdir(copies, 0o700))

	// The oldest artifacts go when there are too many.
	j.Job.Steps = []byte("run:\n- name: s\n  script: mkdir out; head -c 3000 /dev/urandom >out/said\n")
	require.Eventually(t, func() bool {
		many := m.submitJob(j)
		_, build = m.wait(many, 0)
		require.Positive(t, build.GetResult().GetArtifacts(), build.GetResult().GetMessage())
		_, err = m.unpacked(id, "out/said")
		return status.Code(err) == codes.NotFound
	}, sshtest.Bound, time.Millisecond)
	_, err = m.unpacked(id, "out/said")
	require.ErrorContains(t, err, "are not kept any more")
}

// A manager that left a build while the description of its artifacts was on its way removed their pieces.
func TestArtifactsStayWhoseKeeperGoesAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.fileBytes = 200_000
	m := c.member(t, c.nats)
	for i := range 20 {
		text, err := m.m.PutAndGo(t, fmt.Sprintf("build-%d", i), "artifacts")
		require.NoError(t, err)
		require.Equal(t, "artifacts", text)
	}
}

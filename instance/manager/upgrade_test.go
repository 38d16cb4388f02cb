package manager_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/stepmux/stepmux/instance/manager"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
)

// The version before queued a job and the options of its build in one message.
func TestAQueueOfTheVersionBeforeIsTakenOver(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	m := f.start(t)
	_, err := m.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1"}})
	require.NoError(t, err)
	m.stop()
	j := job("echo begun")
	text, err := proto.Marshal(j.GetJob())
	require.NoError(t, err)
	text = protowire.AppendTag(text, 11, protowire.VarintType) // retry_lost
	text = protowire.AppendVarint(text, 1)
	manager.FillQueue(t, f.dir, text, 2)
	m = f.start(t)
	list, err := m.List(t.Context(), &pb.ListRequest{Phase: pb.Build_queued, Limit: 10})
	require.NoError(t, err)
	require.Len(t, list.GetBuilds(), 2)
	_, err = m.Undrain(t.Context(), &pb.UndrainRequest{Instances: []string{"vm-1"}})
	require.NoError(t, err)
	for _, b := range list.GetBuilds() {
		require.Equal(t, "job.yml", b.GetStepsFile())
		log, ended := m.wait(b.GetId(), 0)
		require.Contains(t, log, "begun\n")
		require.Empty(t, ended.GetResult().GetReason(), ended.GetResult().GetMessage())
	}

	// A client of another version is told so, since a field that is passed over may be what keeps a build safe.
	old := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), slices.Clone(text))
	req := &pb.SubmitRequest{}
	require.NoError(t, proto.Unmarshal(old, req))
	_, err = m.Submit(t.Context(), req)
	require.ErrorContains(t, err, "use the same version of stepmux for both")
}

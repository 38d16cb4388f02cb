package service

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// FuzzRunRequest checks requests: an accepted one follows the rules, and an error is short.
func FuzzRunRequest(f *testing.F) {
	add := func(req *pb.RunRequest) {
		b, err := proto.Marshal(req)
		require.NoError(f, err)
		f.Add(b)
	}
	add(&pb.RunRequest{Id: "a", WorkDir: "w", Env: map[string]string{"A": "b"}})
	add(&pb.RunRequest{Id: "a", Type: pb.RunRequest_script, CiScript: "true", Image: "busybox:1"})
	add(&pb.RunRequest{Id: "a", Job: &pb.Job{Script: "true", Env: map[string]string{"A": "b"}}})
	add(&pb.RunRequest{Id: "a", Job: &pb.Job{Steps: []byte("run: [{name: a, script: b}]"), MayFail: []string{"a"}}})
	add(&pb.RunRequest{Id: "../a", Env: map[string]string{"A=B": "\x00"}})
	add(&pb.RunRequest{Id: strings.Repeat("x", 300)})
	f.Fuzz(func(t *testing.T, data []byte) {
		req := &pb.RunRequest{}
		if proto.Unmarshal(data, req) != nil {
			return
		}
		whole := proto.CloneOf(req)
		spec, err := specOf(req)
		require.True(t, proto.Equal(whole, req), "the request stays as it is")
		if err != nil {
			require.Less(t, len(err.Error()), 2<<10)
			return
		}
		require.NotContains(t, spec.ID, "/")
		require.NotContains(t, []string{"", ".", ".."}, spec.ID)
		require.NotContains(t, spec.WorkDir, "\x00")
		require.NoError(t, lang.CheckEnv("env", spec.Env))
		require.GreaterOrEqual(t, spec.Grace, time.Duration(0))
		require.LessOrEqual(t, spec.Grace, maxGrace)
		again, err := specOf(whole)
		require.NoError(t, err)
		require.Equal(t, spec.Digest, again.Digest, "the same request is the same job")
	})
}

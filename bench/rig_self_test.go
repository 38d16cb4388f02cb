package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

func TestVMCPUCountsWhatTheServerStarts(t *testing.T) {
	v := sshtest.OpenSSH(t)
	client, err := ssh.Dial("tcp", v.Addr, v.ClientConfig())
	require.NoError(t, err)
	defer client.Close()
	session, err := client.NewSession()
	require.NoError(t, err)
	leash, err := session.StdinPipe()
	require.NoError(t, err)
	before, err := vmCPU()
	require.NoError(t, err)
	require.NoError(t, session.Start("while :; do :; done & cat; kill $!"))
	require.Eventually(t, func() bool {
		after, err := vmCPU()
		return err == nil && after-before > 100*time.Millisecond // more than a login takes
	}, sshtest.Bound, tick)
	require.NoError(t, leash.Close())
	require.NoError(t, session.Wait())
}

func TestVMCPUIsAnErrorWhereThereIsNoServer(t *testing.T) {
	_, err := vmCPU()
	require.ErrorContains(t, err, "found no sshd")
}

func TestQuantilesAreValuesThatWereMeasured(t *testing.T) {
	r := &results{values: map[string][]float64{"one": {7}}}
	for i := range 100 {
		r.add("hundred", float64(100-i))
	}
	require.InDelta(t, 7, r.quantile("one", 0.5), 0)
	require.InDelta(t, 7, r.quantile("one", 0.99), 0)
	require.InDelta(t, 50, r.quantile("hundred", 0.5), 0)
	require.InDelta(t, 99, r.quantile("hundred", 0.99), 0)
}

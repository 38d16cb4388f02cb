package manager_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stepmux/stepmux/instance/manager"
	"github.com/stepmux/stepmux/instance/manager/access"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// tcp is the API of a manager by TCP.
type tcp struct {
	addr  string
	to    access.Target
	token string
}

// serveTCP serves the API of a manager by TCP.
func (r *running) serveTCP(t *testing.T) *tcp {
	t.Helper()
	dir := t.TempDir()
	cert, err := access.OwnCertificate(filepath.Join(dir, "tls.pem"))
	require.NoError(t, err)
	file := filepath.Join(dir, "token")
	token, err := access.OpenToken(file)
	require.NoError(t, err)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	serving.Go(func() { _ = r.m.ServeTCP(ctx, listener, cert, token) })
	t.Cleanup(func() {
		cancel()
		serving.Wait()
	})
	return &tcp{listener.Addr().String(), access.Target{
		URL: "https://" + listener.Addr().String(), TokenFile: file, Fingerprint: access.Fingerprint(cert),
	}, strings.TrimSpace(string(text))}
}

func TestTheAPIByTCPIsForClientsWithTheToken(t *testing.T) {
	t.Parallel()
	m := newFleet(t).start(t)
	door := m.serveTCP(t)
	conn, err := door.to.Dial(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	far := &running{ManagerClient: pb.NewManagerClient(conn), t: t, m: m.m}
	id := far.submit("echo by tcp; exec sleep 1000")
	far.await(id, "by tcp\n")
	_, err = far.Cancel(t.Context(), &pb.CancelRequest{Id: id})
	require.NoError(t, err)
	_, b := far.wait(id, 0)
	require.Equal(t, "job_canceled", b.GetResult().GetReason())
	_, err = far.Drain(t.Context(), &pb.DrainRequest{Instances: []string{"vm-1"}, Note: "why"})
	require.NoError(t, err)
	_, err = m.Undrain(manager.ContextFor(t.Context(), "page, 192.0.2.7"), &pb.UndrainRequest{Instances: []string{"vm-1"}})
	require.NoError(t, err)
	said, err := far.Audit(t.Context(), &pb.AuditRequest{})
	require.NoError(t, err)
	var texts []string
	for _, e := range said.GetEntries() {
		texts = append(texts, strings.Join([]string{e.GetWho(), e.GetAction(), e.GetSubject(), e.GetNote()}, "|"))
	}
	require.Equal(t, []string{
		"page, 192.0.2.7|undrain|vm-1|", "token, 127.0.0.1|drain|vm-1|why", "token, 127.0.0.1|cancel|" + id + "|",
	}, texts)
	_, err = far.reserve(t.Context(), &pb.ReserveRequest{})
	require.Equal(t, codes.Unimplemented, status.Code(err), "%v", err)
	_, _, _, err = far.exec("lease-x", "true", "")
	require.Equal(t, codes.Unimplemented, status.Code(err), "%v", err)

	// Without the token, and with others.
	plain, err := pb.Connect("passthrough:///"+door.addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		InsecureSkipVerify: true,
	})))
	require.NoError(t, err)
	defer plain.Close()
	for _, shown := range [][]string{nil, {"Bearer x"}, {door.token}, {"Bearer " + door.token, "Bearer " + door.token}} {
		md := metadata.MD{"authorization": shown, "x": {door.token}}
		_, err = pb.NewManagerClient(plain).Submit(metadata.NewOutgoingContext(t.Context(), md),
			job("x"))
		require.Equal(t, codes.Unauthenticated, status.Code(err), "%v", err)
		require.ErrorContains(t, err, "the token is missing or wrong")
		require.NotContains(t, err.Error(), door.token)
	}
	long := metadata.Pairs("authorization", strings.Repeat("x", 64<<10))
	_, err = pb.NewManagerClient(plain).Status(metadata.NewOutgoingContext(t.Context(), long), &pb.StatusRequest{})
	require.Error(t, err)
}

//stepmux:faults vulnerabilities | Clients without the token hold connections to a manager's API, or send large headers
//stepmux:more | they are few and soon closed; a call is refused by its headers
//stepmux:with instance/manager.TestTheAPIByTCPIsForClientsWithTheToken
func TestClientsWithoutTheTokenAreFewAndSoonGone(t *testing.T) {
	m := newFleet(t).start(t)
	door := m.serveTCP(t)
	conn, err := door.to.Dial(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	client := pb.NewManagerClient(conn)
	_, err = client.Status(t.Context(), &pb.StatusRequest{})
	require.NoError(t, err)
	restore := manager.ShortenGuestTime(t, 100*time.Millisecond)
	var guests []net.Conn
	for i := range 300 { // many more than are let in
		guest, err := net.Dial("tcp", door.addr)
		require.NoError(t, err)
		defer guest.Close()
		guests = append(guests, guest)
		if i%3 == 0 {
			_, _ = io.WriteString(guest, "GET /?token="+door.token+" HTTP/1.1\r\n\r\n")
		}
	}
	for _, guest := range guests {
		require.NoError(t, guest.SetReadDeadline(time.Now().Add(sshtest.Bound)))
		_, err := io.Copy(io.Discard, guest)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "a guest stays")
	}
	_, err = client.Status(t.Context(), &pb.StatusRequest{})
	require.NoError(t, err, "the client with the token stays")
	restore()
	require.Eventually(t, func() bool { // once the server has noticed that the guests are gone
		again, err := door.to.Dial(t.Context())
		if err == nil {
			again.Close()
		}
		return err == nil
	}, sshtest.Bound, bound10ms, "and others come")
}

// A client waited for two hours for a manager whose machine had died: gRPC leaves TCP's keepalive as the system has it.
func TestAClientByTCPNoticesADeadLink(t *testing.T) {
	t.Parallel()
	door := newFleet(t).start(t).serveTCP(t)
	conn, err := door.to.Dial(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	_, err = pb.NewManagerClient(conn).Status(t.Context(), &pb.StatusRequest{})
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(door.addr)
	require.NoError(t, err)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		text, err := os.ReadFile("/proc/net/tcp")
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line) // proc_net_tcp(5): f[2] is the other end, f[5] the timer and when it is due
			if len(f) > 5 && strings.HasSuffix(f[2], fmt.Sprintf(":%04X", number)) && strings.HasPrefix(f[5], "02:") {
				ticks, err := strconv.ParseInt(f[5][3:], 16, 64)
				require.NoError(t, err)
				return ticks <= 60*100 // in 1/100 s
			}
		}
		return false
	}, 10*time.Second, 10*time.Millisecond)
}

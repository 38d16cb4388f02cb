package service

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// h2 is a client that speaks HTTP/2 frame by frame.
type h2 struct {
	*http2.Framer
	net.Conn
	settings map[http2.SettingID]uint32 // the server's
	over     chan struct{}              // closed once the server has ended the connection
}

// dialH2 connects to h, and reads everything that h sends.
func dialH2(t *testing.T, h *harness) *h2 {
	t.Helper()
	conn, err := net.Dial("unix", h.socket)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	c := &h2{
		Framer:   http2.NewFramer(conn, conn),
		Conn:     conn,
		settings: map[http2.SettingID]uint32{},
		over:     make(chan struct{}),
	}
	require.NoError(t, c.WriteSettings())
	frame, err := c.ReadFrame()
	require.NoError(t, err)
	settings, ok := frame.(*http2.SettingsFrame)
	require.True(t, ok)
	require.NoError(t, settings.ForeachSetting(func(s http2.Setting) error {
		c.settings[s.ID] = s.Val
		return nil
	}))
	go func() {
		defer close(c.over)
		for {
			if _, err := c.ReadFrame(); err != nil {
				return
			}
		}
	}()
	return c
}

// call returns the headers of a call.
func call() []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", "/stepmux.v1.StepRunner/FollowIO"},
		{":authority", "x"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return b.Bytes()
}

// requireServes checks that h answers a call, and that few goroutines are there more than before.
func requireServes(t *testing.T, h *harness, before int) {
	t.Helper()
	_, err := h.List(t.Context(), &pb.ListRequest{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return runtime.NumGoroutine() < before+100 }, patience, time.Millisecond)
}

func TestStreamsOfAConnectionAreLimited(t *testing.T) {
	c := dialH2(t, newHarness(t))
	require.EqualValues(t, maxStreams, c.settings[http2.SettingMaxConcurrentStreams])
	require.EqualValues(t, 64<<10, c.settings[http2.SettingMaxHeaderListSize])
}

//stepmux:faults vulnerabilities | HTTP/2: calls that are reset at once (CVE-2023-44487) | streams of a connection are
//stepmux:more limited
//stepmux:with remote/job/service.TestStreamsOfAConnectionAreLimited
//stepmux:with internal/promises.TestLibrariesAreOfVersionsWithoutKnownVulnerabilities
func TestCallsThatAreResetAtOnceTakeNoMemory(t *testing.T) {
	// Each costs the client nothing, and there is no limit on how many it makes (CVE-2023-44487).
	h := newHarness(t)
	_, err := h.List(t.Context(), &pb.ListRequest{})
	require.NoError(t, err)
	before := runtime.NumGoroutine()
	c, headers, most := dialH2(t, h), call(), 0
	for i := range uint32(5_000) {
		err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: headers, EndHeaders: true})
		if err == nil {
			err = c.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		}
		if err != nil {
			break // the server had enough
		}
		most = max(most, runtime.NumGoroutine())
	}
	require.Less(t, most-before, 2*maxStreams)
	c.Close()
	<-c.over
	requireServes(t, h, before)
}

//stepmux:faults vulnerabilities | HTTP/2: headers, settings or pings without end (CVE-2023-45288) | headers are
//stepmux:more limited; a flooding client is disconnected
//stepmux:with remote/job/service.TestSettingsAndPingsWithoutEndTakeNoMemory
func TestHeadersWithoutEndEndTheConnection(t *testing.T) {
	// A server that gathers them, or decodes them to no end, can be kept busy with little (CVE-2023-45288).
	h := newHarness(t)
	_, err := h.List(t.Context(), &pb.ListRequest{})
	require.NoError(t, err)
	before := runtime.NumGoroutine()
	c := dialH2(t, h)
	require.NoError(t, c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: call()}))
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	_ = e.WriteField(hpack.HeaderField{Name: "x", Value: string(bytes.Repeat([]byte("y"), 8<<10)), Sensitive: true})
	const many = 10_000 // 80 MiB
	sent := 0
	for ; sent < many && c.WriteContinuation(1, false, b.Bytes()) == nil; sent++ {
	}
	require.Less(t, sent, many, "it is read to no end")
	<-c.over
	requireServes(t, h, before)
}

func TestSettingsAndPingsWithoutEndTakeNoMemory(t *testing.T) {
	h := newHarness(t)
	_, err := h.List(t.Context(), &pb.ListRequest{})
	require.NoError(t, err)
	before := runtime.NumGoroutine()
	c := dialH2(t, h)
	for i := 0; i < 100_000; i++ {
		if c.WriteSettings() != nil || c.WritePing(false, [8]byte{}) != nil {
			break
		}
	}
	c.Close()
	<-c.over
	requireServes(t, h, before)
}

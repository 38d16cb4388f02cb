package streams_test

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stepmux/stepmux/internal/coalesce"
	"github.com/stepmux/stepmux/internal/streams"
	"github.com/stepmux/stepmux/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const window = 512 << 10

// run runs a session over a connection until the test ends.
func run(t testing.TB, nc net.Conn, accept func(*streams.Stream)) *streams.Session {
	t.Helper()
	out := coalesce.New(nc, 384<<10)
	s := streams.New(streams.Config{In: nc, Out: out, Window: window, Accept: accept})
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run() })
	wg.Go(func() {
		_ = out.Run()
		nc.Close()
	})
	t.Cleanup(func() {
		s.Close()
		nc.Close()
		wg.Wait()
	})
	return s
}

// echo sends back the bytes of a stream, and its end.
func echo(wg *sync.WaitGroup) func(s *streams.Stream) {
	return func(s *streams.Stream) {
		wg.Go(func() {
			_, _ = io.Copy(struct{ io.Writer }{s}, struct{ io.Reader }{s})
			s.Close()
		})
	}
}

// through sends data by a stream to a peer that echoes, in pieces of all sizes, and returns the answer.
func through(t testing.TB, s io.ReadWriter, end func(), data []byte) []byte {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer end()
		for size := 1; len(data) > 0; size = size*3 + 1 {
			n := min(size%200_000, len(data))
			if _, err := s.Write(data[:n]); err != nil {
				return
			}
			data = data[n:]
		}
	})
	got, err := io.ReadAll(s)
	require.NoError(t, err)
	wg.Wait()
	return got
}

func someBytes(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.Read(data)
	return data
}

func TestManyStreamsCarryMoreThanTheirWindows(t *testing.T) {
	near, far := net.Pipe()
	var echoes, all sync.WaitGroup
	run(t, far, echo(&echoes))
	client := run(t, near, nil)
	for range 8 {
		all.Go(func() {
			s, err := client.Open()
			require.NoError(t, err)
			data := someBytes(3 * window)
			require.True(t, bytes.Equal(data, through(t, s, s.Close, data)))
		})
	}
	all.Wait()
	echoes.Wait()
}

// The other end may be the library that the format is of.
func TestTheLibraryIsUnderstoodAndUnderstands(t *testing.T) {
	cfg := yamux.DefaultConfig()
	cfg.EnableKeepAlive, cfg.LogOutput = false, io.Discard
	data := someBytes(3 * window)

	near, far := net.Pipe()
	library, err := yamux.Server(far, cfg)
	require.NoError(t, err)
	defer library.Close()
	var echoes sync.WaitGroup
	echoes.Go(func() {
		s, err := library.Accept()
		if err == nil {
			_, _ = io.Copy(struct{ io.Writer }{s}, struct{ io.Reader }{s})
			s.Close()
		}
	})
	client := run(t, near, nil)
	s, err := client.Open()
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, through(t, s, s.Close, data)))
	client.Ping()
	echoes.Wait()

	near, far = net.Pipe()
	run(t, far, echo(&echoes))
	library, err = yamux.Client(near, cfg)
	require.NoError(t, err)
	defer library.Close()
	theirs, err := library.OpenStream()
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, through(t, theirs, func() { theirs.Close() }, data)))
	_, err = library.Ping()
	require.NoError(t, err)
	echoes.Wait()
}

// accepting returns a session's stream to a peer that accepts it.
func accepting(t testing.TB) (client *streams.Session, near, far *streams.Stream) {
	t.Helper()
	a, b := net.Pipe()
	accepted := make(chan *streams.Stream, 1)
	run(t, b, func(s *streams.Stream) { accepted <- s })
	client = run(t, a, nil)
	near, err := client.Open()
	require.NoError(t, err)
	return client, near, <-accepted
}

func TestAStopWakesWaitingCalls(t *testing.T) {
	_, near, far := accepting(t)
	stop := make(chan struct{})
	stopped := make(chan error, 2)
	go func() {
		_, err := near.ReadUntil(make([]byte, 1), stop)
		stopped <- err
	}()
	sent := make(chan int, 1)
	go func() {
		n, err := near.WriteUntil(make([]byte, 2*window), stop)
		sent <- n
		stopped <- err
	}()
	got, err := io.ReadFull(far, make([]byte, 1))
	require.NoError(t, err)
	require.Equal(t, 1, got)
	close(stop)
	require.ErrorIs(t, <-stopped, streams.ErrStopped)
	require.ErrorIs(t, <-stopped, streams.ErrStopped)
	n := <-sent
	near.Close()
	rest, err := io.ReadAll(far)
	require.NoError(t, err)
	require.Len(t, rest, n-1, "what was counted is on its way")
}

func TestEachDirectionEndsByItself(t *testing.T) {
	_, near, far := accepting(t)
	near.Close()
	near.Close()
	_, err := near.Write([]byte("x"))
	require.ErrorIs(t, err, streams.ErrClosed)
	_, err = io.ReadAll(far)
	require.NoError(t, err)
	_, err = far.Write([]byte("still"))
	require.NoError(t, err)
	far.Close()
	got, err := io.ReadAll(near)
	require.NoError(t, err)
	require.Equal(t, "still", string(got))
}

func TestTheEndOfTheSessionWakesAllAndLosesNothingThatCame(t *testing.T) {
	client, near, far := accepting(t)
	_, err := far.Write([]byte("last"))
	require.NoError(t, err)
	one := make([]byte, 1)
	_, err = io.ReadFull(near, one)
	require.NoError(t, err)
	client.Close()
	<-client.Done()
	got := make([]byte, 3)
	_, err = io.ReadFull(near, got)
	require.NoError(t, err)
	require.Equal(t, "ast", string(got))
	_, err = near.Read(got)
	require.ErrorIs(t, err, client.Err())
	require.NotErrorIs(t, err, io.EOF, "not a stream's end")
	_, err = near.Write(got)
	require.Error(t, err)
	_, err = client.Open()
	require.Error(t, err)
	_, err = io.ReadAll(far)
	require.Error(t, err, "the other end sees the link's end, not the stream's")
}

func TestAClosedStreamIsResetIfThePeerStaysOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		out := coalesce.New(near, 1<<10)
		s := streams.New(streams.Config{In: near, Out: out, Window: window, CloseTimeout: time.Minute})
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Run() })
		wg.Go(func() { _ = out.Run() })
		st, err := s.Open()
		require.NoError(t, err)
		st.Close()
		frames := make([]byte, 3*12) // it is opened, closed, and reset
		_, err = io.ReadFull(far, frames)
		require.NoError(t, err)
		require.EqualValues(t, 8, binary.BigEndian.Uint16(frames[26:]))
		_, err = st.Read(make([]byte, 1))
		require.ErrorIs(t, err, streams.ErrClosed)
		s.Close()
		near.Close()
		far.Close()
		wg.Wait()
	})
}

// Symptom: the time of a closed stream passed just as data came for it. The peer was said to break the protocol, and
// all streams of the session ended.
func TestDataForAStreamThatIsGivenUpJustThenIsDropped(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	s := run(t, near, nil)
	go func() { _, _ = io.Copy(io.Discard, far) }() // ends with far
	for _, size := range []int{1, 100_000, window + 1} {
		st, err := s.Open()
		require.NoError(t, err)
		in := bytes.NewReader(make([]byte, size))
		require.NoError(t, st.ReceiveLate(in, uint32(size)), "%d bytes", size)
		require.Zero(t, in.Len())
		_, err = st.Read(make([]byte, 1))
		require.ErrorIs(t, err, streams.ErrClosed)
	}
	require.NoError(t, s.Err())
}

// What waits in a stream that nobody reads takes little more memory than its bytes, whatever the size of the frames.
func TestFramesOfAllSizesTakeTheMemoryOfTheirBytes(t *testing.T) {
	const wide = 1 << 20
	data := make([]byte, wide)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	for _, size := range []int{16, 4096, 4097, 9000, 33_000, 65_540, 100_000} {
		in, say := io.Pipe()
		out := coalesce.New(io.Discard, 1<<20)
		s := streams.New(streams.Config{In: in, Out: out, Window: wide})
		var wg sync.WaitGroup
		wg.Go(func() { _ = out.Run() })
		wg.Go(func() { _ = s.Run() })
		st, err := s.Open()
		require.NoError(t, err)
		before := heap()
		var frames []byte
		for at := 0; at < wide; at += size {
			n := min(size, wide-at)
			frames = append(frames, frame(0, 0, 1, uint32(n), string(data[at:at+n]))...)
		}
		_, err = say.Write(frames)
		require.NoError(t, err)
		_, err = say.Write(frame(1, 4, 1, 0, "")) // the last frame has been received once this one is taken
		require.NoError(t, err)
		require.Less(t, heap()-before, int64(wide)*3/2, "frames of %d bytes", size)
		got, err := io.ReadAll(st)
		require.NoError(t, err)
		require.Equal(t, data, got)
		say.Close()
		wg.Wait()
	}
}

// heap returns how many bytes are in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // for what pools keep over one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}

// frame returns a frame, with n as its number and then its data.
func frame(kind byte, flags uint16, id, n uint32, data string) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0, kind}, flags)
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, id), n)
	return append(b, data...)
}

var ping = frame(2, 1, 0, 7, "")

// hear returns why a client's session ends that has opened stream 1 and hears this.
func hear(in io.Reader) error {
	out := coalesce.New(io.Discard, 1<<20)
	var wg sync.WaitGroup
	wg.Go(func() { _ = out.Run() })
	defer wg.Wait()
	s := streams.New(streams.Config{In: in, Out: out, Window: window})
	if _, err := s.Open(); err != nil {
		return err
	}
	return s.Run()
}

func TestAPeerThatBreaksTheProtocolEndsTheSession(t *testing.T) {
	for name, tc := range map[string]struct {
		said []byte
		want string // empty: it keeps to the protocol
	}{
		"opens a stream":            {frame(1, 1, 2, 0, ""), "opened a stream"},
		"opens a stream with bytes": {frame(0, 1, 2, 3, "abc"), "opened a stream"},
		"opens one after data":      {append(frame(0, 0, 1, 3, "abc"), frame(1, 1, 2, 0, "")...), "opened a stream"},
		"opens ours again":          {frame(1, 1, 1, 0, ""), "opened a stream"},
		"pings all the time":        {bytes.Repeat(ping, 17), "pings more"},
		"pings":                     {bytes.Repeat(ping, 16), ""},
		"answers pings":             {bytes.Repeat(frame(2, 2, 0, 7, ""), 1000), ""},
		"acknowledges and ends":     {append(frame(1, 2, 1, 0, ""), frame(1, 4, 1, 0, "")...), ""},
		"sends after its end":       {append(frame(1, 4, 1, 0, ""), frame(0, 0, 1, 1, "x")...), "after its end"},
		"has a header in its data":  {frame(0, 0, 1, 12, string(frame(1, 1, 2, 0, ""))), ""},
		"exceeds the window":        {frame(0, 0, 1, window+1, ""), "more than its window"},
		"grants more than there is": {bytes.Repeat(frame(1, 0, 1, 1<<31, ""), 2), "window of more than 4 GiB"},
		"writes to a stream we had": {frame(0, 0, 9, 3, "abc"), ""},
		"is of another version":     {append([]byte{1}, ping[1:]...), "version 1"},
		"has another kind":          {frame(4, 0, 0, 0, ""), "kind 4"},
	} {
		for _, read := range []func(io.Reader) io.Reader{func(r io.Reader) io.Reader { return r }, iotest.OneByteReader} {
			err := hear(read(bytes.NewReader(tc.said)))
			if tc.want == "" {
				require.ErrorIs(t, err, io.ErrUnexpectedEOF, name)
			} else {
				require.ErrorIs(t, err, wire.ErrRelayProtocol, name)
				require.ErrorContains(t, err, tc.want, name)
			}
		}
	}
	require.ErrorContains(t, hear(bytes.NewReader(frame(3, 0, 0, 0, ""))), "accepts no more streams")
}

func TestOnePingASecondIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, say := io.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 1000 {
				<-time.NewTimer(time.Second).C
				_, _ = say.Write(ping)
			}
			say.Close()
		})
		require.ErrorIs(t, hear(in), io.ErrUnexpectedEOF)
		wg.Wait()
	})
}

// FuzzHear holds that no peer makes a session panic, hang or keep more than a stream's window.
func FuzzHear(f *testing.F) {
	f.Add(frame(0, 0, 1, 3, "abc"))
	f.Add(append(frame(1, 4, 1, 0, ""), ping...))
	f.Fuzz(func(t *testing.T, said []byte) { require.Error(t, hear(bytes.NewReader(said))) })
}

package buildlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// killed keeps what is written until it has had so many writes, as a process that is killed then.
type killed struct {
	bytes.Buffer
	state  State
	writes int
}

func (k *killed) WriteState(text []byte, after State) (int, error) {
	if k.writes > 0 {
		k.writes--
		k.Write(text)
		k.state = after
	}
	return len(text), nil
}

// A log that stops after any write is gone on with by another Log: no byte is missing, and none comes twice.
func TestALogGoesOnWhereAnotherOneStopped(t *testing.T) {
	stdout, stderr := []byte("out 1\nstep runner: mine\nout 2"), []byte("err 1\nerr 2\n")
	events := []string{"", "one\ntwo\nthree\n", "", "four"}
	notices := []byte("first\n\nsecond\n")
	play := func(k *killed, flush func() bool) {
		l := New(k, 0)
		l.Restore(k.state)
		s := k.state
		done := make(chan struct{})
		says := l.Notices(done)
		for piece := s.Notices; piece < int64(len(notices)); piece += 3 {
			_, _ = says.WriteAt(notices[piece:min(piece+3, int64(len(notices)))], piece)
		}
		says.Flush()
		for _, text := range events[s.Events:] {
			l.Event(done, text)
			if flush() {
				require.NoError(t, l.Flush(t.Context()))
			}
		}
		for _, b := range stdout[s.Stdout:] {
			_, err := l.WriteOutput(done, []byte{b}, false)
			require.NoError(t, err)
			if flush() {
				require.NoError(t, l.Flush(t.Context()))
			}
		}
		_, err := l.WriteOutput(done, stderr[s.Stderr:], true)
		require.NoError(t, err)
		l.Close(t.Context())
	}
	whole := &killed{writes: 1 << 30}
	play(whole, func() bool { return false })
	require.Equal(t, "step runner: first\nstep runner: second\nstep runner: one\nstep runner: two\nstep runner: three\n"+
		"step runner: four\nout 1\nstep runner:| mine\nout 2err 1\nerr 2\n", whole.String())
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		k := &killed{}
		for k.String() != whole.String() {
			k.writes = random.IntN(4)
			play(k, func() bool { return random.IntN(2) == 0 })
			kept, err := json.Marshal(k.state)
			require.NoError(t, err)
			k.state = State{}
			require.NoError(t, json.Unmarshal(kept, &k.state))
			require.Equal(t, whole.String()[:k.Len()], k.String(), fmt.Sprint(k.state))
		}
	}
}

package vmlog_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/vmlog"
)

// logger returns a Logger with bounds, and the buffer of its log.
func logger() (*slog.Logger, *bytes.Buffer) {
	out := &bytes.Buffer{}
	var l vmlog.Limiter
	return l.Logger(slog.New(slog.NewTextHandler(out, nil))), out
}

func TestFloodOfOneMessageIsDroppedAndHidesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, out := logger()
		flood := log.With("build", "1")
		for range 1000 {
			flood.Warn("relay", "says", "x")
		}
		require.Equal(t, 20, strings.Count(out.String(), "msg=relay"))
		require.NotContains(t, out.String(), "dropped")

		log.Info("another")
		require.Equal(t, 1, strings.Count(out.String(), "msg=another"))

		time.Sleep(25 * time.Second) //nolint:forbidigo // of the bubble
		out.Reset()
		for range 5 {
			log.Warn("relay")
		}
		require.Equal(t, 2, strings.Count(out.String(), "msg=relay"), "one for each 10 s")
		require.Contains(t, out.String(), "dropped=980")

		time.Sleep(time.Hour) //nolint:forbidigo // of the bubble
		out.Reset()
		for range 100 {
			log.Warn("relay")
		}
		require.Equal(t, 20, strings.Count(out.String(), "msg=relay"), "no more than 20 at once, ever")
	})
}

func TestLongTextsAreCut(t *testing.T) {
	log, out := logger()
	long := strings.Repeat("x", 10*vmlog.MaxText)
	log.WithGroup("g").Warn("relay", "says", long, "error", errors.New(long), "n", 7, "short", errors.New("whole"))
	require.Less(t, out.Len(), 2*vmlog.MaxText+200)
	require.Contains(t, out.String(), "g.n=7 g.short=whole")
	require.Equal(t, 2, strings.Count(out.String(), "xxx..."))
}

package jobdoor

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The questions and the reports of a server that is away fail in turns, each with an error of its own: the log had both
// after each try.
func TestEachErrorOfAServerThatIsAwayIsToldOnce(t *testing.T) {
	var log strings.Builder
	d := New(Config{}, Host{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for range 3 {
		d.Fails(t.Context(), "ask", errors.New("refused"))
		d.Fails(t.Context(), "report", errors.New("refused"))
	}
	require.Equal(t, 2, strings.Count(log.String(), "level=WARN"), log.String())
	require.Equal(t, "cannot report: refused", d.Standing().Reason)
	d.Works()
	d.Fails(t.Context(), "ask", errors.New("refused"))
	require.Equal(t, 3, strings.Count(log.String(), "level=WARN"), log.String())
	for i := range 100 {
		d.Fails(t.Context(), "ask", fmt.Errorf("refused from port %d", i))
	}
	require.Equal(t, 2+maxTold, strings.Count(log.String(), "level=WARN"))
}

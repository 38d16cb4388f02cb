package buildlog

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// noter is an OutputNoter.
type noter struct {
	bytes.Buffer
	at []int // lengths of the log before each note
}

func (n *noter) NoteOutput() { n.at = append(n.at, n.Len()) }

// Symptom: the time to the first output of a build whose image could not be pulled was that of our line about it.
func TestLinesAboutTheBuildAreNoOutput(t *testing.T) {
	for name, write := range map[string]func(*Log) error{
		"stdout": func(l *Log) error { _, err := l.WriteOutput(nil, []byte("on\n"), false); return err },
		"stderr": func(l *Log) error { _, err := l.WriteOutput(nil, []byte("on\n"), true); return err },
		"other":  func(l *Log) error { _, err := l.Write([]byte("on\n")); return err },
	} {
		t.Run(name, func(t *testing.T) {
			w := &noter{}
			l := New(w, 0)
			fmt.Fprintln(l.Remarks(nil), "image x:1 is pulled")
			l.Event(nil, "step s begins\n")
			require.NoError(t, l.Flush(t.Context()))
			require.Empty(t, w.at)
			require.False(t, l.State().HasOutput())
			before := w.Len()
			require.Positive(t, before)
			require.NoError(t, write(l))
			l.Close(t.Context())
			require.Equal(t, []int{before}, w.at)
			require.True(t, l.State().HasOutput())
		})
	}
}

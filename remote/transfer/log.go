package transfer

import (
	"fmt"
	"io"

	"github.com/stepmux/stepmux/internal/termtext"
)

// Log writes lines for a job's log. Foreign text in them cannot move the cursor or imitate another line.
type Log struct{ To io.Writer }

// Info writes a line.
func (l Log) Info(text string) { l.write("", text) }

// Warn writes a line that begins with WARNING.
func (l Log) Warn(text string) { l.write("WARNING: ", text) }

// Error writes a line that begins with ERROR. The command may still succeed.
func (l Log) Error(text string) { l.write("ERROR: ", text) }

// Fatal writes a line that begins with FATAL, the last line of a command that fails.
func (l Log) Fatal(err error) { l.write("FATAL: ", err.Error()) }

func (l Log) write(prefix, text string) { fmt.Fprintln(l.To, prefix+termtext.Line(text)) }

package action

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/stepmux/stepmux/remote/step/engine"
)

const (
	// maxSummary bounds the summary of a step, in bytes.
	maxSummary = 1 << 20
	// maxEntries bounds the entries of a command file, and the patterns of hashFiles.
	maxEntries = 10_000
)

// fileKinds are the command files of a step. GITHUB_<KIND> is the variable with the path of each.
var fileKinds = []string{"output", "env", "path", "state", "step_summary"}

// files are the command files of a process, in a directory of their own.
type files struct {
	call *engine.Call
	name string // of the directory; see [engine.Call.FilesDir]
}

func newFiles(call *engine.Call) files { return files{call, call.FilesDir()} }

// dir returns the path of the directory, or "" if there are no files.
func (f files) dir() string {
	if f.name == "" {
		return ""
	}
	return f.call.Path(f.name)
}

func (f files) path(kind string) string { return f.call.Path(f.entry(kind)) }

func (f files) entry(kind string) string { return filepath.Join(f.name, kind) }

// create makes the files, empty.
func (f files) create() error {
	if err := f.call.MakeFiles(f.name, fileKinds); err != nil {
		return fmt.Errorf("create the command files: %w", err)
	}
	return nil
}

// read returns the content of a command file.
func (f files) read(kind string) (string, error) {
	data, err := f.call.ReadFile(f.entry(kind))
	if err == nil && !utf8.Valid(data) {
		err = errors.New("the command file is not valid UTF-8")
	}
	if err != nil {
		return "", fmt.Errorf("unable to process file command '%s' successfully: %w", kind, err)
	}
	return strings.TrimPrefix(string(data), "\uFEFF"), nil
}

// entries reads a command file of names and values.
func (f files) entries(kind string) ([]setting, error) {
	text, err := f.read(kind)
	if err != nil {
		return nil, err
	}
	list, err := parseEntries(text)
	if err != nil {
		return nil, fmt.Errorf("unable to process file command '%s' successfully: %w", kind, err)
	}
	for i, e := range list { // else a short one keeps the whole file in memory
		list[i].name, list[i].text = strings.Clone(e.name), strings.Clone(e.text)
	}
	return list, nil
}

// parseEntries reads name=value lines, and values of several lines as name<<DELIMITER, the lines, and DELIMITER.
func parseEntries(text string) ([]setting, error) {
	var list []setting
	n := 0
	for text != "" {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		line = strings.TrimSuffix(line, "\r")
		n++
		if line == "" {
			continue
		}
		if len(list) == maxEntries {
			return nil, fmt.Errorf("line %d: there are more than %d values", n, maxEntries)
		}
		equals, heredoc := strings.Index(line, "="), strings.Index(line, "<<")
		switch {
		case equals >= 0 && (heredoc < 0 || equals < heredoc):
			if equals == 0 {
				return nil, fmt.Errorf("line %d: invalid format '%.160s': the name must not be empty", n, line)
			}
			list = append(list, setting{line[:equals], line[equals+1:], n})
		case heredoc > 0 && heredoc+2 < len(line):
			name, delimiter := line[:heredoc], line[heredoc+2:]
			value, rest, lines, found := untilDelimiter(text, delimiter)
			if !found {
				return nil, fmt.Errorf("line %d: invalid value: matching delimiter not found '%.160s'", n, delimiter)
			}
			list = append(list, setting{name, value, n})
			text, n = rest, n+lines
		case heredoc >= 0:
			return nil, fmt.Errorf("line %d: invalid format '%.160s': neither the name nor the delimiter may be empty", n, line)
		default:
			return nil, fmt.Errorf("line %d: invalid format '%.160s'; write name=value", n, line)
		}
	}
	return list, nil
}

// untilDelimiter returns the lines of text before the line delimiter, and the text after it.
func untilDelimiter(text, delimiter string) (value, rest string, lines int, found bool) {
	for at := 0; at <= len(text); {
		line, _, more := strings.Cut(text[at:], "\n")
		next := at + len(line) + 1
		lines++
		if strings.TrimSuffix(line, "\r") == delimiter {
			value = strings.TrimSuffix(strings.TrimSuffix(text[:at], "\n"), "\r")
			return value, text[min(next, len(text)):], lines, true
		}
		if !more {
			return "", "", lines, false
		}
		at = next
	}
	return "", "", lines, false
}

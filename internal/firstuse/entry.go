package firstuse

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	// maxID bounds an identity in its escaped form.
	maxID = 512
	// dayForm is the format of days.
	dayForm = "2006-01-02"
	// usedMark precedes the day in a line's comment.
	usedMark = "last-used="
)

// entry is one line of the file.
type entry struct {
	id   string // escaped
	key  ssh.PublicKey
	used time.Time // day on which the machine was last reached; zero if not known
}

func (e entry) line() string {
	return fmt.Sprintf(
		"%s %s %s %s%s\n", e.id, e.key.Type(), base64.StdEncoding.EncodeToString(e.key.Marshal()), usedMark,
		e.used.Format(dayForm),
	)
}

// parse reads the whole file. A line that it cannot parse is an error: if it were skipped, a wrong machine could be
// trusted.
func parse(data []byte) ([]entry, error) {
	var all []entry
	for n := 1; len(data) > 0; n++ {
		var line []byte
		line, data, _ = bytes.Cut(data, []byte("\n"))
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		e, err := parseLine(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		all = append(all, e)
	}
	return all, nil
}

func parseLine(line []byte) (entry, error) {
	marker, hosts, key, comment, _, err := ssh.ParseKnownHosts(line)
	switch {
	case errors.Is(err, io.EOF):
		return entry{}, errors.New("the line has no key")
	case err != nil:
		return entry{}, err
	case marker != "" || len(hosts) != 1 || strings.ContainsAny(hosts[0], "*?!|"):
		return entry{}, errors.New(
			"the line is not of the form ID TYPE KEY: this file is for identities; " +
				"put patterns and markers into a known_hosts file",
		)
	}
	e := entry{id: hosts[0], key: key}
	if day, ours := strings.CutPrefix(comment, usedMark); ours {
		e.used, _ = time.Parse(dayForm, day) // zero if it is no day
	}
	return e, nil
}

// escape converts an identity for the file: characters with a meaning in known_hosts become %XX.
func escape(id string) (string, error) {
	if id == "" {
		return "", errors.New("the machine has no identity")
	}
	var out strings.Builder
	for i := range len(id) {
		c := id[i]
		safe := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.IndexByte("._-:/+=", c) >= 0 ||
			i > 0 && c == '@' // at the start it would be a marker
		if safe {
			out.WriteByte(c)
		} else {
			fmt.Fprintf(&out, "%%%02X", c)
		}
	}
	if out.Len() > maxID {
		return "", fmt.Errorf("the machine's identity is longer than %d characters", maxID)
	}
	return out.String(), nil
}

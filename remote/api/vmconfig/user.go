package vmconfig

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	// firstBuildID is the first id of a range: by the custom of distributions, smaller ids are for root and the
	// system's services. The ids from nobodyID to overflowID stand for unknown users.
	firstBuildID, nobodyID, overflowID = 1000, 65534, 65535
	// maxBuildID is the largest id in a range.
	maxBuildID = 1<<31 - 2
	// maxBuildIDs bounds the number of ids in a range.
	maxBuildIDs = 4096
)

// ParseUser parses the user for builds on a VM where the login is root: a name, or a range of ids in the form
// FIRST-LAST, from which each build gets one. It returns the name, or the ids. An empty text is no error: then builds
// run as the login.
func ParseUser(text string) (name string, first, last int, err error) {
	from, to, cut := strings.Cut(text, "-")
	first, firstErr := strconv.Atoi(from)
	last, lastErr := strconv.Atoi(to)
	switch isRange := cut && firstErr == nil && lastErr == nil; {
	case !isRange && !isUserName(text):
		err = fmt.Errorf("%.60q: use the name of a user, or a range of user ids such as 2000-2015", text)
	case !isRange:
		return text, 0, 0, nil
	case first < firstBuildID || last > maxBuildID || first <= overflowID && last >= nobodyID:
		err = fmt.Errorf("%s: a range begins at %d or later, and is without %d and %d: the others are those of "+
			"root, of the system and of the user nobody", text, firstBuildID, nobodyID, overflowID)
	case last < first || last-first >= maxBuildIDs:
		err = fmt.Errorf("%s: a range has 1 to %d ids", text, maxBuildIDs)
	}
	return "", first, last, err
}

// isUserName reports whether text can be the name of a user, or is empty.
func isUserName(text string) bool {
	return len(text) <= 256 && !strings.HasPrefix(text, "-") &&
		!strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == ':' || r == '/' || r == ',' || r >= 0x7f })
}

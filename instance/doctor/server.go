package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/internal/lazyregexp"
)

// version is major, minor and p number of an OpenSSH release.
type version [3]int

func (v version) less(w version) bool { return slices.Compare(v[:], w[:]) < 0 }

func (v version) String() string { return fmt.Sprintf("%d.%dp%d", v[0], v[1], v[2]) }

// openSSH matches the version string of a portable OpenSSH, with its distribution's suffix.
var openSSH = lazyregexp.New(`^SSH-2\.0-OpenSSH_(\d{1,3})\.(\d{1,3})(?:\.\d{1,3})?p(\d{1,3})(?: (\S+))?`)

// flaw is a known fault of some versions of OpenSSH's server.
type flaw struct {
	from, fixed version // the first that has it, and the first that no longer has it
	what        string
	// debian12 is the least N for which 9.2p1 of Debian-2+deb12uN has the fix; 0 if that version does not have the
	// flaw.
	debian12 int
}

// flaws are from OpenSSH's release notes, https://www.openssh.com/releasenotes.html, and Debian's security
// tracker.
var flaws = []flaw{
	{version{}, version{6, 7, 1}, "the server cannot forward to unix sockets", 0},
	{version{8, 5, 1}, version{9, 8, 1}, "CVE-2024-6387: on Linux with glibc, code can be run as root without a login", 3},
	{
		version{},
		version{9, 6, 1},
		"CVE-2023-48795: somebody on the way can remove messages at the beginning of a connection", 2,
	},
	{version{9, 5, 1}, version{9, 9, 2}, "CVE-2025-26466: memory and processor time can be used up without a login", 0},
}

// judgeServer judges the version of the server.
func judgeServer(identification string) Finding {
	m := openSSH().FindStringSubmatch(identification)
	if m == nil {
		return okay(checkServer, identification+" (not a portable OpenSSH: nothing is known of it)")
	}
	var v version
	for i := range v {
		v[i], _ = strconv.Atoi(m[i+1]) // they are short numbers, so this cannot fail
	}
	var found []string
	var fixed version
	for _, flaw := range flaws {
		if v.less(flaw.from) || !v.less(flaw.fixed) || v == (version{9, 2, 1}) && debian12(m[4]) >= flaw.debian12 {
			continue
		}
		found = append(found, flaw.what)
		if fixed.less(flaw.fixed) {
			fixed = flaw.fixed
		}
	}
	if len(found) == 0 {
		return okay(checkServer, identification)
	}
	detail := identification + ": " + strings.Join(found, "; ")
	change := fmt.Sprintf("install OpenSSH %v or newer", fixed)
	if m[4] != "" {
		detail += " (unless " + m[4] + " has the fixes, which the number does not tell)"
		change = "install the distribution's security updates, or OpenSSH " + fixed.String() + " or newer"
	}
	return warning(checkServer, detail, change, "builds run either way; it closes known holes")
}

// debian12 returns N of a Debian 12 package (Debian-2+deb12uN), or 0 if it is another package.
func debian12(suffix string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(suffix, "Debian-2+deb12u"))
	if err != nil {
		return 0
	}
	return n
}

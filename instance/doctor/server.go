package doctor

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// version is major.minor of an OpenSSH release, with its p number.
type version struct{ major, minor, patch int }

func (v version) less(w version) bool {
	if v.major != w.major {
		return v.major < w.major
	}
	if v.minor != w.minor {
		return v.minor < w.minor
	}
	return v.patch < w.patch
}

func (v version) String() string { return fmt.Sprintf("%d.%dp%d", v.major, v.minor, v.patch) }

// openSSH matches the version string of a portable OpenSSH, with its distribution's suffix. It is compiled when it is
// needed: this program is started for each step on a VM.
var openSSH = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^SSH-2\.0-OpenSSH_(\d{1,3})\.(\d{1,3})(?:\.\d{1,3})?p(\d{1,3})(?: (\S+))?`)
})

// flaw is a known fault of some versions of OpenSSH's server.
type flaw struct {
	from, fixed version // the first that has it, and the first that has it no more
	what        string
	// debian12 is the least N for which 9.2p1 of Debian-2+deb12uN has the fix; 0 if that has no such flaw.
	debian12 int
}

// flaws are from OpenSSH's release notes, https://www.openssh.com/releasenotes.html, and Debian's security
// tracker.
var flaws = []flaw{
	{version{}, version{6, 7, 1}, "it cannot forward to unix sockets", 0},
	{version{8, 5, 1}, version{9, 8, 1}, "CVE-2024-6387: on Linux with glibc, code can be run as root without a login", 3},
	{version{}, version{9, 6, 1},
		"CVE-2023-48795: somebody on the way can remove messages at the beginning of a connection", 2},
	{version{9, 5, 1}, version{9, 9, 2}, "CVE-2025-26466: memory and processor time can be used up without a login", 0},
}

// server judges the version of the server.
func (e *examination) server() {
	e.report.add(judgeServer(e.conn.Stat().ServerVersion))
}

func judgeServer(identification string) Finding {
	f := Finding{Check: checkServer, Status: OK, Detail: identification}
	m := openSSH().FindStringSubmatch(identification)
	if m == nil {
		f.Detail += " (not a portable OpenSSH: nothing is known of it)"
		return f
	}
	var v version
	v.major, _ = strconv.Atoi(m[1]) // they are short numbers
	v.minor, _ = strconv.Atoi(m[2])
	v.patch, _ = strconv.Atoi(m[3])
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
		return f
	}
	f.Status = Warn
	f.Detail += ": " + strings.Join(found, "; ")
	f.Change = fmt.Sprintf("install OpenSSH %v or newer", fixed)
	if m[4] != "" {
		f.Detail += " (unless " + m[4] + " has the fixes, which the number does not tell)"
		f.Change = "install the distribution's security updates, or OpenSSH " + fixed.String() + " or newer"
	}
	f.Gain = "builds run either way; it closes known holes"
	return f
}

// debian12 returns the number of a security update of Debian 12's package, 0 if that is another package.
func debian12(suffix string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(suffix, "Debian-2+deb12u"))
	if err != nil {
		return 0
	}
	return n
}

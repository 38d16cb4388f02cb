package wire

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	// ProgramName is the name that our own program reports.
	ProgramName = "stepmux"
	// ContainerHome is the directory of the step runner in the container of a job.
	ContainerHome = "/.stepmux"
	// FetchProgram is the file beside stepmux-vm that has the commands which need the network.
	FetchProgram = "stepmux-fetch"
	// UploadDigits is the length of the name of a directory with an uploaded program: so many digits of the program's
	// SHA-256.
	UploadDigits = 16
	// MaxVersionText bounds the output of --version, a login shell's greeting included.
	MaxVersionText = 64 << 10

	// programHello starts the line in which a relay introduces its program.
	programHello = "stepmux-program/"
	// LingerHello is the line, after ProgramHello, in which a relay says that its program has Program.Linger. Older
	// managers take it for a login shell's greeting.
	LingerHello = "stepmux-features/" + lingerFeature + "\n"
	// lingerFeature is the word for Program.Linger in lists of features, whose words are separated by spaces.
	lingerFeature = "linger"
	// maxVersion bounds a version in bytes.
	maxVersion = 64
)

// IsUploadDir reports whether name is valid for a directory with an uploaded program.
func IsUploadDir(name string) bool {
	return len(name) == UploadDigits && strings.Trim(name, "0123456789abcdef") == ""
}

// Program is the description of a step runner by itself.
type Program struct {
	// Name is ProgramName, or empty for another project's program.
	Name string
	// Version is 1 to 64 printable ASCII characters; empty if it is not known.
	Version string
	// Platform is os/arch in Go's words, empty if it is not known.
	Platform string
	// Protocol is the version of the relay's protocol; 0 if the program has no relay.
	Protocol int
	// Linger says that its serve can outlive the connection to its manager (steps serve --linger).
	Linger bool
}

// OpenProgram is the path by which a manager starts a program whose open file its shell has as OpenDescriptor.
const (
	OpenProgram    = "/proc/self/fd/3"
	OpenDescriptor = 3
)

// VersionText returns the output of --version: the lines that a manager of GitLab Runner expects, and lines that
// identify our program. The commit may be empty.
func VersionText(p Program, goVersion, commit string) string {
	if commit != "" {
		commit = "Git revision: " + commit + "\n"
	}
	return fmt.Sprintf("Version: %s\n%sName: %s\nProtocol: %d\n%sGo version: %s\nOS/Arch: %s\n",
		p.Version, commit, p.Name, p.Protocol, FeaturesLine(p.Linger), goVersion, p.Platform)
}

// FeaturesLine returns the line of --version with the program's features. It is empty if there are none.
func FeaturesLine(linger bool) string {
	if !linger {
		return ""
	}
	return "Features: " + lingerFeature + "\n"
}

// ParseVersionText reads the output of --version. A login shell's greeting may come first, so the last Version line
// and the lines after it count.
func ParseVersionText(text []byte) (Program, error) {
	var p Program
	found := false
	for line := range bytes.Lines(text) {
		text := string(bytes.TrimSpace(line))
		if i := strings.LastIndex(text, " Version:"); i >= 0 { // behind a shell's prompt
			text = text[i+1:]
		}
		key, value, ok := strings.Cut(text, ":")
		value = strings.TrimSpace(value)
		switch {
		case !ok:
		case key == "Version":
			p, found = Program{Version: value}, true
		case key == "Name":
			p.Name = value
		case key == "OS/Arch":
			p.Platform = value
		case key == "Protocol":
			p.Protocol, _ = strconv.Atoi(value) // 0 if it is not a number
		case key == "Features":
			p.Linger = slices.Contains(strings.Fields(value), lingerFeature)
		}
	}
	switch {
	case !found:
		return Program{}, fmt.Errorf("no line of it begins with %q", "Version:")
	case !ValidVersion(p.Version):
		return Program{}, fmt.Errorf("the program's version %q is not a valid version", clip(p.Version))
	case p.Platform == "":
		return Program{}, fmt.Errorf("no line of it begins with %q", "OS/Arch:")
	case !ValidPlatform(p.Platform):
		return Program{}, fmt.Errorf("the program's OS/Arch %q is not os/arch", clip(p.Platform))
	}
	if p.Name != ProgramName || p.Protocol < 0 {
		p.Name, p.Protocol, p.Linger = "", 0, false
	}
	return p, nil
}

// ProgramHello returns the line in which a relay introduces its program, before its hello. Older managers take it for a
// login shell's greeting. It is empty if version or platform is not valid.
func ProgramHello(version, platform string) string {
	if !ValidVersion(version) || !ValidPlatform(platform) {
		return ""
	}
	return programHello + platform + " " + version + "\n"
}

// FindProgramHello finds the last ProgramHello in the bytes before a relay's hello. Without one, only the name is
// known.
func FindProgramHello(noise []byte) Program {
	p := Program{Name: ProgramName}
	for line := range bytes.Lines(noise) {
		p.Linger = p.Linger || string(line) == LingerHello
		i := bytes.LastIndex(line, []byte(programHello)) // a shell's prompt may come before it
		if i < 0 {
			continue
		}
		text := strings.TrimRight(string(line[i+len(programHello):]), "\r\n")
		platform, version, _ := strings.Cut(text, " ")
		if ValidVersion(version) && ValidPlatform(platform) {
			p.Version, p.Platform = version, platform
		}
	}
	return p
}

// ValidVersion reports whether s is a valid version, such as v1.2.3-rc1+x, a hash, or "development version".
func ValidVersion(s string) bool {
	if s == "" || len(s) > maxVersion || !isAlnum(s[0]) {
		return false
	}
	for i := range len(s) {
		if !isAlnum(s[i]) && !strings.ContainsRune(".+-_~ ()/", rune(s[i])) {
			return false
		}
	}
	return true
}

// ValidPlatform reports whether s has the form os/arch, such as linux/amd64.
func ValidPlatform(s string) bool {
	system, arch, ok := strings.Cut(s, "/")
	return ok && validWord(system) && validWord(arch)
}

func validWord(s string) bool {
	for i := range len(s) {
		if c := s[i]; c >= 'A' && c <= 'Z' || c != '_' && !isAlnum(c) {
			return false
		}
	}
	return s != "" && len(s) <= 32
}

func isAlnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// ToolsVar is an environment variable of the command lines that a relay runs: a directory with links to this program,
// by the names that the scripts of a GitLab manager use.
const ToolsVar = "STEPMUX_TOOLS"

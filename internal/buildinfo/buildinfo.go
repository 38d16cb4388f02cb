// Package buildinfo tells which version of stepmux this program is.
package buildinfo

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/stepmux/stepmux/internal/wire"
)

// The linker sets these: -X github.com/stepmux/stepmux/internal/buildinfo.version=v1.2.3. `make build` does.
var version, commit, fetchSum string

// FromGo returns what the go command knows of this program: [debug.ReadBuildInfo] in a program that sets it. In others,
// which the linker tells, it would only make the program larger.
var FromGo = func() (*debug.BuildInfo, bool) { return nil, false }

// Version returns the version that the linker set, or the one that the go command knows, or "devel".
func Version() string {
	if version != "" {
		return version
	}
	info, ok := FromGo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}

// Commit returns the commit that the program was built from, or "" if that is unknown.
func Commit() string {
	if commit != "" {
		return commit
	}
	info, ok := FromGo()
	if !ok {
		return ""
	}
	revision, changed := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+changes"
		}
	}
	if revision == "" {
		return ""
	}
	return revision + changed
}

// FetchSum returns the SHA-256 of the stepmux-fetch that was built together with this program, in hexadecimal, or "" if
// the go command alone has built this one.
func FetchSum() string { return fetchSum }

// Text returns the lines by which managers, ours and GitLab Runner's, identify a program.
func Text() string {
	return wire.VersionText(wire.Program{
		Name:     wire.ProgramName,
		Version:  Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Protocol: wire.RelayVersion,
		Linger:   true,
	}, runtime.Version(), Commit())
}

// GitLabText returns the lines that GitLab Runner's program prints for its version, with the version that a manager
// shall read, and lines that identify our program. If version is empty, it is our own.
func GitLabText(version string) string {
	return fmt.Sprintf(`Version:      %s
Git revision: %s
Git branch:   unknown
GO version:   %s
Built:        unknown
OS/Arch:      %s/%s
Name:         %s
Protocol:     %d
%sStepmux:      %s
`, cmp.Or(version, Version()), cmp.Or(Commit(), "unknown"), runtime.Version(), runtime.GOOS, runtime.GOARCH,
		wire.ProgramName, wire.RelayVersion, wire.FeaturesLine(true), Version())
}

// Checksum returns the SHA-256 of this program's file, in hexadecimal.
func Checksum() (string, error) {
	file, err := os.Open("/proc/self/exe") // even if another file has its name by now
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", err // names the file
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

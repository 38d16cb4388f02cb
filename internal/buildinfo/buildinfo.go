// Package buildinfo returns the version, the commit and the checksums of this program.
package buildinfo

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/stepmux/stepmux/internal/filesum"
	"github.com/stepmux/stepmux/internal/wire"
)

// The linker sets these: -X github.com/stepmux/stepmux/internal/buildinfo.version=v1.2.3. `make build` does.
var version, commit, fetchSum string

// FromGo returns the go command's information about this program: [debug.ReadBuildInfo] in a program that sets it. The
// other programs get it from the linker, and would only become larger.
var FromGo = func() (*debug.BuildInfo, bool) { return nil, false }

// Version returns the version from the linker, or else from the go command, or "devel".
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

// FetchSum returns the SHA-256 of the stepmux-fetch that was built together with this program, in hexadecimal. It is ""
// if the go command built this program by itself.
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

// GitLabText returns the lines that GitLab Runner's program prints for its version, and lines that identify our
// program. version is the version for a manager; if empty, our own.
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
	return filesum.SHA256(os.OpenFile, "/proc/self/exe") // even if another file is at its path now
}

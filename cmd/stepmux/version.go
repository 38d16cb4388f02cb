package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/internal/wire"
)

// release is set by the linker for releases: -X main.release=v1.2.3.
var release string

// version returns the release, or the version in the build information.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}

// versionText returns the lines by which managers, ours and GitLab Runner's, identify a program.
func versionText() string {
	return wire.VersionText(wire.Program{
		Name:     wire.ProgramName,
		Version:  version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Protocol: wire.RelayVersion,
	}, runtime.Version())
}

func newVersionCommand() *cobra.Command {
	checksum := false
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text := versionText()
			if checksum {
				sum, err := ownChecksum()
				if err != nil {
					return systemError(err)
				}
				text += "SHA-256: " + sum + "\n"
			}
			fmt.Fprint(cmd.OutOrStdout(), text)
			return nil
		},
	}
	cmd.Flags().BoolVar(&checksum, "checksum", false, "also print the SHA-256 of the program's file")
	return cmd
}

// ownChecksum returns the SHA-256 of this program's file.
func ownChecksum() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	file, err := os.Open(path)
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

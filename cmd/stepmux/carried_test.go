package main

import (
	"debug/elf"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

func TestAProgramOfMakeTellsTheEndThatItCarries(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), runnertest.Manager(t), "version").Output()
	require.NoError(t, err)
	require.Regexp(t, "(?m)^Carries: stepmux-vm and stepmux-fetch for .*"+runtime.GOOS+"/"+runtime.GOARCH, string(out))
	require.Contains(t, platforms(), "no stepmux-vm, as make did not build it") // this test is such a program
}

// The VM's end for another machine runs there as far as that can be tested here: by an emulator.
func TestTheVMsEndForArm64RunsThere(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds for another machine")
	}
	const emulator = "/usr/bin/qemu-aarch64-static"
	sshtest.RequirePart(t, "qemu-user-static", emulator)
	file := filepath.Join(t.TempDir(), "stepmux-vm")
	require.NoError(t, runnertest.BuildEnd(file, "GOOS=linux", "GOARCH=arm64"))
	head, err := elf.Open(file)
	require.NoError(t, err)
	defer head.Close()
	require.Equal(t, elf.EM_AARCH64, head.Machine)
	for _, section := range head.Sections {
		require.NotEqual(t, ".interp", section.Name, "it is static")
	}
	out, err := exec.CommandContext(t.Context(), emulator, file, "version").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "Name: stepmux\n")
	require.Contains(t, string(out), "OS/Arch: linux/arm64\n")
}

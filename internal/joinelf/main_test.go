package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/runnertest"
)

func TestMain(m *testing.M) { runnertest.Main(m) }

func TestTheVMsEndBeginsAtItsInit(t *testing.T) {
	program := runnertest.Command(t)[0]
	file, err := elf.Open(program)
	require.NoError(t, err)
	defer file.Close()
	var executable []*elf.Prog
	for _, part := range file.Progs {
		if part.Type == elf.PT_LOAD && part.Flags&elf.PF_X != 0 {
			executable = append(executable, part)
		}
	}
	require.Len(t, executable, 2)
	require.Greater(t, file.Entry, executable[1].Vaddr)
	info, err := exec.CommandContext(t.Context(), "go", "version", "-m", program).CombinedOutput()
	require.NoError(t, err, "%s", info)
	require.Contains(t, string(info), "github.com/stepmux/stepmux/cmd/stepmux-vm\n")

	for _, args := range [][]string{{"stepmux", "__init"}, {program, "__init", "more"}} {
		cmd := exec.CommandContext(t.Context(), program)
		cmd.Args = args
		out, err := cmd.CombinedOutput()
		require.Equal(t, "stepmux: __init is started by stepmux itself, and does nothing by hand\n", string(out))
		require.ErrorContains(t, err, "exit status 2")
	}
	for _, args := range [][]string{{"__init"}, {program, "__init2"}, {program, "version", "__init"}} {
		cmd := exec.CommandContext(t.Context(), program)
		cmd.Args = args
		out, _ := cmd.CombinedOutput()
		require.NotContains(t, string(out), "by hand", "%q", args)
	}
}

func TestProgramsThatDoNotFitAreNotJoined(t *testing.T) {
	program := runnertest.Command(t)[0]
	build := func(pkg, flags string) string {
		file := filepath.Join(t.TempDir(), "program")
		out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags", flags, "-o", file, pkg).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return file
	}
	require.ErrorContains(t, join(program, build("../../cmd/stepmux-init", "-E main.entry")), "both have the address")
	empty := filepath.Join(t.TempDir(), "empty.go")
	require.NoError(t, os.WriteFile(empty, []byte("package main\n\nfunc main() {}\n"), 0o600))
	require.ErrorContains(t, join(program, build(empty, "-s")), "no place for the entry of the first")
	require.Error(t, join(program, "main.go"))
	require.Error(t, join("main.go", program))
	require.Error(t, join(program, "no such file"))
}

package proc

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestStartErrorsNameTheMistakeInTheCommand(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), mode))
	}
	write("text", "no program", 0o644)
	write("garbage", "no program", 0o755)
	write("lost", "#!/nowhere/sh\n", 0o755)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "directory"), 0o755))
	tests := map[string]struct {
		program string
		env     []string
		reason  error
		errno   error
	}{
		"not in PATH":                      {"nosuch", []string{"PATH=" + dir}, ErrNotFound, unix.ENOENT},
		"no PATH":                          {"sh", nil, ErrNotFound, unix.ENOENT},
		"an empty PATH":                    {"sh", []string{"PATH="}, ErrNotFound, unix.ENOENT},
		"a directory in PATH":              {"directory", []string{"PATH=" + dir}, ErrNotFound, unix.ENOENT},
		"no file":                          {dir + "/nosuch", nil, ErrNotFound, unix.ENOENT},
		"below a file":                     {dir + "/text/nosuch", nil, ErrNotFound, unix.ENOTDIR},
		"a very long name":                 {"/" + strings.Repeat("x", 5000), nil, ErrNotFound, unix.ENAMETOOLONG},
		"no interpreter":                   {dir + "/lost", nil, ErrNotFound, unix.ENOENT},
		"not executable":                   {dir + "/text", nil, ErrNotExecutable, unix.EACCES},
		"not executable in PATH":           {"text", []string{"PATH=" + dir}, ErrNotExecutable, unix.EACCES},
		"a directory":                      {dir + "/directory", nil, ErrNotExecutable, unix.EACCES},
		"no program of any format we know": {dir + "/garbage", nil, ErrNotExecutable, unix.ENOEXEC},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Start(t.Context(), Command{Argv: []string{test.program}, Dir: dir, Env: test.env})
			var start *StartError
			require.ErrorAs(t, err, &start)
			require.Equal(t, test.program, start.Program)
			require.ErrorIs(t, err, test.reason)
			require.ErrorIs(t, err, test.errno)
			require.ErrorContains(t, err, test.program)
			for _, other := range []error{ErrNotFound, ErrNotExecutable, ErrTooLarge} {
				require.Equal(t, errors.Is(test.reason, other), errors.Is(err, other))
			}
		})
	}
}

func TestStartErrorsNameTheMistakeInTheDirectory(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	tests := map[string]struct{ dir, text string }{
		"missing":      {dir + "/nosuch", dir + `/nosuch": no such file`},
		"a file":       {file, file + `": not a directory`},
		"relative":     {"here", `"here" is not an absolute path`},
		"empty":        {"", "not an absolute path"},
		"a NUL inside": {"/tmp\x00/x", "NUL"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := shell("true")
			c.Dir = test.dir
			_, err := Start(t.Context(), c)
			require.ErrorContains(t, err, test.text)
			require.NotErrorIs(t, err, ErrNotFound, "this is not about the program")
		})
	}
}

func TestStartRefusesMalformedCommands(t *testing.T) {
	tests := map[string]struct {
		change func(*Command)
		text   string
	}{
		"no argv":            {func(c *Command) { c.Argv = nil }, "no program"},
		"an empty program":   {func(c *Command) { c.Argv[0] = "" }, "no program"},
		"NUL in the program": {func(c *Command) { c.Argv[0] = "/bin/sh\x00x" }, "argument 0 has a NUL byte"},
		"NUL in an argument": {func(c *Command) { c.Argv[2] = "a\x00b" }, "argument 2 has a NUL byte"},
		"NUL in a variable": {
			func(c *Command) { c.Env = []string{"SECRET=hush\x00hush"} },
			`variable "SECRET" has a NUL byte`,
		},
		"no key=value":         {func(c *Command) { c.Env = []string{"hush"} }, "not KEY=VALUE"},
		"a variable, no name":  {func(c *Command) { c.Env = []string{"=hush"} }, "not KEY=VALUE"},
		"a relative directory": {func(c *Command) { c.Visible = "x" }, "not an absolute path"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := shell("true")
			test.change(&c)
			_, err := Start(t.Context(), c)
			require.ErrorContains(t, err, test.text)
			require.NotContains(t, err.Error(), "hush", "a value may be a secret")
		})
	}
}

func TestStartNamesTheArgumentThatIsTooLarge(t *testing.T) {
	longest := 32*os.Getpagesize() - 1
	many := func(total int) (list []string) {
		for range total / (64 << 10) {
			list = append(list, strings.Repeat("x", 64<<10-1))
		}
		return list
	}
	variables := shell("true")
	variables.Env = append(variables.Env, "BIG="+strings.Repeat("x", longest))
	tests := map[string]struct {
		c    Command
		text string
	}{
		"one argument":             {shell("true", strings.Repeat("x", longest+1)), "argument 4 has"},
		"one variable":             {variables, `environment variable "BIG" has`},
		"all, as the kernel sees":  {shell("true", many(3<<20)...), "argument list too long"},
		"all, more than we send":   {shell("true", many(5<<20)...), "the limit is 4194304"},
		"very many empty ones too": {shell("true", make([]string, 5<<20)...), "the limit is 4194304"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Start(t.Context(), test.c)
			require.ErrorIs(t, err, ErrTooLarge)
			require.ErrorContains(t, err, `"/bin/sh"`)
			require.ErrorContains(t, err, test.text)
			require.Less(t, len(err.Error()), 300, "the message echoes the arguments")
		})
	}
	exit, out := run(t, shell(`echo ${#1}`, strings.Repeat("x", longest)))
	require.Zero(t, exit.Code)
	require.Equal(t, len(strings.Repeat("x", longest)), atoi(strings.TrimSpace(out)))
}

func TestProgramIsLookedUpInItsOwnPathRelativeToItsDirectory(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string, mode os.FileMode) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), mode))
	}
	script("here", "echo here $(pwd)", 0o755)
	script("bin/tool", "echo tool $*", 0o755)
	script("first/tool", "echo not executable", 0o644)
	tests := map[string]struct{ program, path, want string }{
		"relative to Dir":           {"./here", "", "here " + dir},
		"relative entry in PATH":    {"tool", "first:bin", "tool a b"},
		"an empty entry is Dir":     {"here", ":/nowhere", "here " + dir},
		"the rest of PATH is tried": {"tool", "/nowhere:" + dir + "/first:" + dir + "/bin", "tool a b"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := Command{Argv: []string{test.program, "a", "b"}, Dir: dir}
			if test.path != "" {
				c.Env = []string{"PATH=/first/one/does/not/count", "PATH=" + test.path}
			}
			exit, out := run(t, c)
			require.Zero(t, exit.Code, out)
			require.Equal(t, test.want+"\n", out)
		})
	}
}

func TestStartWaitsForItsTurnAsLongAsItsContext(t *testing.T) {
	for range cap(startSlots) {
		startSlots <- struct{}{}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("changed my mind")
	done := make(chan error)
	go func() {
		_, err := Start(ctx, shell("true"))
		done <- err
	}()
	cancel(because)
	require.ErrorIs(t, <-done, because)
	for range cap(startSlots) {
		<-startSlots
	}
	_, err := Start(ctx, shell("true"))
	require.ErrorIs(t, err, because)
}

func TestStartThatIsCancelledLeavesNothing(t *testing.T) {
	tag := newTag()
	because := errors.New("changed my mind")
	for range 20 {
		ctx, cancel := context.WithCancelCause(t.Context())
		c := shell("sleep 1000")
		c.Env = append(c.Env, tag)
		go cancel(because)
		p, err := Start(ctx, c)
		if err != nil {
			require.ErrorIs(t, err, because)
			continue
		}
		require.NoError(t, p.Close())
	}
	require.Empty(t, tagged(t, tag))
}

func TestStartPanicsWithoutMain(t *testing.T) {
	isReady.Store(false)
	defer isReady.Store(true)
	require.Panics(t, func() { _, _ = Start(t.Context(), shell("true")) })
}

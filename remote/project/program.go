package project

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/remote/proc"
)

// run runs the program that packs and unpacks in the job's directory, and returns the last lines of its standard error.
// The program is killed when ctx ends.
func (p *Project) run(ctx context.Context, in, out *os.File, args ...string) (note string, err error) {
	var said tail.Writer
	command := proc.Command{Argv: slices.Concat(p.cfg.Command, args), Dir: p.dir(), Stdin: in, Stderr: &said}
	if out != nil {
		command.Stdout = out
	}
	process, err := p.cfg.Start(ctx, command)
	if err != nil {
		return "", fmt.Errorf("start the program for archives: %w", err)
	}
	exit, err := process.Wait(ctx)
	if closeErr := process.Close(); err == nil {
		err = closeErr
	}
	note = said.String()
	switch {
	case err != nil:
		return "", err
	case exit.Limit != "":
		return "", errors.New(exit.Limit)
	case exit.Code != 0:
		return "", programError(cmp.Or(strings.TrimPrefix(note, "stepmux: "), exit.String()))
	}
	return note, nil
}

// programError is a failure that the program for archives reports.
type programError string

func (e programError) Error() string { return string(e) }

// Is reports whether the disk was full.
func (e programError) Is(target error) bool {
	return target == error(unix.ENOSPC) && strings.Contains(string(e), unix.ENOSPC.Error())
}

package program

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/mux"
)

// uploadTimeout bounds one attempt to put a program on a VM.
const uploadTimeout = 10 * time.Minute

// bootstrap puts a stepmux on the VM in place of an unusable program and looks at it.
func (f *finder) bootstrap(ctx context.Context, instead *unusableError) (*Program, error) {
	bin, err := f.binaryFor(ctx, instead)
	if err != nil {
		return nil, err
	}
	command, err := f.upload(ctx, bin)
	if err != nil {
		return nil, err
	}
	f.Logger.Info("stepmux put on the VM", "path", command,
		"because", strings.Join(f.Runner, " ")+" "+instead.problem)
	p, err := f.look(ctx, []string{command})
	bad := (*unusableError)(nil)
	switch {
	case errors.As(err, &bad):
		_, _, _ = f.run(ctx, removeArgv(path.Dir(command))) // best effort: a later upload sweeps it
		return nil, &ServeError{
			ExitCode: -1,
			Err:      fmt.Errorf("the stepmux that was put on the VM does not run there: %w", bad.err),
			Hint:     "take one that is built with CGO_ENABLED=0",
		}
	case err != nil:
		return nil, err
	}
	p.Uploaded = true
	if p.Platform == "" {
		p.Platform = bin.platform
	}
	return p, nil
}

// binaryFor returns the program for the VM's platform.
func (f *finder) binaryFor(ctx context.Context, instead *unusableError) (*Binary, error) {
	if instead.platform == "" { // not inspected yet
		out, stderr, err := f.run(ctx, inspectArgv(f.Runner[0]))
		if instead.platform = parseInspection(out).platform; instead.platform == "" {
			if mux.IsLost(err) {
				return nil, err
			}
			return nil, &ServeError{
				ExitCode: -1,
				Stderr:   stderr,
				Err:      errors.New("find out the VM's platform: it reports no platform that Go programs exist for"),
				Hint:     "a POSIX sh and uname are needed there to put a stepmux on it",
			}
		}
	}
	for _, b := range f.Bootstrap {
		if b.platform == instead.platform {
			return b, nil
		}
	}
	return nil, &ServeError{
		ExitCode: -1,
		Err:      fmt.Errorf("%w; there is no stepmux for %s to put there", instead.err, instead.platform),
		Hint:     fmt.Sprintf("name one: stepmux run --bootstrap-binary %s=FILE", instead.platform),
	}
}

// places are the directories for a program on a VM, the best first. "cache" is the user's cache.
func (f *finder) places() []string {
	return slices.Compact([]string{"cache", f.TempDir, "/var/tmp"})
}

// upload puts bin in the first place that accepts it, unless it is there already, and returns its path.
func (f *finder) upload(ctx context.Context, bin *Binary) (string, error) {
	var tried []string
	for _, place := range f.places() {
		command, err := f.uploadTo(ctx, place, bin)
		local := (*os.PathError)(nil)
		switch {
		case err == nil:
			return command, nil
		case errors.As(err, &local):
			return "", fmt.Errorf("put stepmux on the VM: %w", err)
		case mux.IsLost(err), ctx.Err() != nil, errors.Is(err, mux.ErrForbidden):
			return "", err
		}
		if place == "cache" {
			place = "the user's cache"
		}
		tried = append(tried, fmt.Sprintf("in %s: %v", place, err))
	}
	return "", &ServeError{
		ExitCode: -1,
		Err:      fmt.Errorf("put stepmux for %s on the VM: %s", bin.platform, strings.Join(tried, "; ")),
		Hint:     "make room, or install it there",
	}
}

// uploadTo puts bin in one place. The error's text says why the place does not accept it.
func (f *finder) uploadTo(ctx context.Context, place string, bin *Binary) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, uploadTimeout, fmt.Errorf("it took longer than %v", uploadTimeout))
	defer cancel()
	file, err := os.Open(bin.path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	stderr := &tail.Writer{}
	process, err := f.Conn.Start(ctx, mux.Command{Argv: uploadArgv(place, bin), Stderr: stderr})
	if err != nil {
		return "", err
	}
	defer process.Close()
	defer context.AfterFunc(ctx, func() { process.Close() })()
	answers := bufio.NewReader(io.LimitReader(process, maxAnswer))
	command, err := readAnswer(answers)
	if err == nil && command == "" {
		_, err = io.CopyN(process, file, bin.size)
		switch {
		case err == nil:
			command, err = readAnswer(answers)
		case errors.Is(err, io.EOF):
			return "", &os.PathError{Op: "read", Path: bin.path, Err: errors.New("it has changed since it was loaded")}
		}
	}
	_ = process.CloseWrite() // fails only if the process has ended
	ended := process.Wait(ctx)
	switch {
	case mux.IsLost(ended):
		return "", ended
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err == nil && ended == nil && path.IsAbs(command):
		return command, nil
	case stderr.String() != "":
		return "", errors.New(stderr.String())
	case ended != nil:
		return "", ended
	default:
		return "", errors.Join(err, errors.New("it did not say that it has it"))
	}
}

// readAnswer reads the next answer of uploadScript: the path of the program, or "", which asks for its bytes.
func readAnswer(r *bufio.Reader) (command string, err error) {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		if _, answer, ok := strings.Cut(strings.TrimRight(line, "\r\n"), uploadPrefix); ok {
			if answer == "send" {
				return "", nil
			}
			if command, ok := strings.CutPrefix(answer, "at "); ok {
				return command, nil
			}
		}
	}
}

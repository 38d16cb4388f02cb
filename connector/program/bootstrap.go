package program

import (
	"bufio"
	"cmp"
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
	sum, err := bin.SHA256()
	if err != nil {
		return nil, err
	}
	if f.sent {
		f.Logger.Info("stepmux put on the VM", "path", command, "because", strings.Join(f.Runner, " ")+" "+instead.problem)
	}
	checked := checkedArgv(sum, command)
	p, err := f.look(ctx, checked)
	if bad, unusable := errors.AsType[*unusableError](err); unusable {
		_, _, _ = f.run(ctx, removeArgv(path.Dir(command))) // best effort: a later upload sweeps it
		err := fmt.Errorf("the stepmux that was put on the VM does not run there: %w", bad.err)
		return nil, notStarted(err, "", "take one that is built with CGO_ENABLED=0")
	}
	if err != nil {
		return nil, err
	}
	p.Command, p.argv, p.Uploaded = []string{command}, checked, f.sent
	p.Platform = cmp.Or(p.Platform, bin.platform)
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
			err = errors.New("find out the VM's platform: it reports no platform that Go programs exist for")
			return nil, notStarted(err, stderr, "a POSIX sh and uname are needed there to put a stepmux on it")
		}
	}
	for _, b := range f.Bootstrap {
		if b.platform == instead.platform {
			return b, nil
		}
	}
	err := fmt.Errorf("%w; there is no stepmux for %s to put there", instead.err, instead.platform)
	return nil, notStarted(err, "", "name one: stepmux run --bootstrap-binary "+instead.platform+"=FILE")
}

// upload puts bin in the first place that accepts it, unless it is there already, and returns its path. "cache" is the
// user's cache.
func (f *finder) upload(ctx context.Context, bin *Binary) (string, error) {
	var tried []string
	for _, place := range slices.Compact([]string{"cache", f.TempDir, "/var/tmp"}) {
		command, err := f.uploadTo(ctx, place, bin)
		_, local := errors.AsType[*os.PathError](err)
		switch {
		case err == nil:
			return command, nil
		case local:
			return "", fmt.Errorf("put stepmux on the VM: %w", err)
		case mux.IsLost(err), ctx.Err() != nil, errors.Is(err, mux.ErrForbidden):
			return "", err
		}
		if place == "cache" {
			place = "the user's cache"
		}
		tried = append(tried, fmt.Sprintf("in %s: %v", place, err))
	}
	err := fmt.Errorf("put stepmux for %s on the VM: %s", bin.platform, strings.Join(tried, "; "))
	return "", notStarted(err, "", "make room, or install it there")
}

// uploadTo puts bin in one place. The error's text says why the place does not accept it.
func (f *finder) uploadTo(ctx context.Context, place string, bin *Binary) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, uploadTimeout, fmt.Errorf("it took longer than %v", uploadTimeout))
	defer cancel()
	told, err := bin.facts()
	if err != nil {
		return "", &os.PathError{Op: "read", Path: bin.name, Err: err}
	}
	f.sent = false
	stderr := &tail.Writer{}
	process, err := f.Conn.Start(ctx, mux.Command{Argv: uploadArgv(place, told), Stderr: stderr})
	if err != nil {
		return "", err
	}
	defer process.Close()
	defer context.AfterFunc(ctx, func() { process.Close() })()
	answers := bufio.NewReader(io.LimitReader(process, maxAnswer))
	answer, err := readAnswer(answers)
	if err == nil && (answer == sendPlain || answer == sendPacked) {
		f.sent = true
		if err = bin.writeTo(process, answer == sendPacked, told.size); err == nil {
			if answer == sendPacked {
				err = process.CloseWrite() // gzip reads to the end
			}
			if err == nil {
				answer, err = readAnswer(answers)
			}
		} else if _, local := errors.AsType[*os.PathError](err); local {
			return "", err
		}
	}
	_ = process.CloseWrite() // fails only if the process has ended
	ended := process.Wait(ctx)
	switch {
	case mux.IsLost(ended):
		return "", ended
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err == nil && ended == nil && path.IsAbs(answer):
		return answer, nil
	case stderr.String() != "":
		return "", errors.New(stderr.String())
	case ended != nil:
		return "", ended
	default:
		return "", errors.Join(err, errors.New("it did not say that it has it"))
	}
}

// Answers of uploadScript that ask for the program's bytes.
const (
	sendPlain  = "send"
	sendPacked = "send gzip"
)

// readAnswer reads the next answer of uploadScript: sendPlain, sendPacked, or the path of the program.
func readAnswer(r *bufio.Reader) (string, error) {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		_, answer, _ := strings.Cut(strings.TrimRight(line, "\r\n"), uploadPrefix)
		if answer == sendPlain || answer == sendPacked {
			return answer, nil
		}
		if at, ok := strings.CutPrefix(answer, "at "); ok {
			return at, nil
		}
	}
}

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
	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/mux"
)

// uploadTimeout bounds one attempt to upload a program.
const uploadTimeout = 10 * time.Minute

// bootstrap uploads a stepmux to the VM in place of an unusable program, and asks it for its version.
func (f *finder) bootstrap(ctx context.Context, instead *unusableError) (*Program, error) {
	bin, err := f.binaryFor(ctx, instead)
	if err != nil {
		return nil, err
	}
	command, at, err := f.upload(ctx, bin)
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
		_, _, _ = f.run(ctx, nil, removeArgv(path.Dir(command))) // best effort: a later upload removes it
		err := fmt.Errorf("the stepmux that was put on the VM does not run there: %w", bad.err)
		return nil, notStarted(err, "", "take one that is built with CGO_ENABLED=0")
	}
	if err != nil {
		return nil, err
	}
	p.Command, p.argv, p.Uploaded = []string{command}, checked, f.sent
	p.Platform = cmp.Or(p.Platform, bin.platform)
	p.binary, p.at = bin, at
	return p, nil
}

// binaryFor returns the program for the VM's platform.
func (f *finder) binaryFor(ctx context.Context, instead *unusableError) (*Binary, error) {
	if instead.platform == "" { // the VM has not been inspected yet
		out, stderr, err := f.run(ctx, f.Runner, inspectArgv(f.Runner[0]))
		if instead.platform = parseInspection(out).platform; instead.platform == "" {
			if mux.IsLost(err) || errors.Is(err, ErrNotRun) {
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
	return nil, notStarted(err, "", "use a stepmux of make build, since make run builds for one platform, or name one: "+
		"stepmux run --bootstrap-binary "+instead.platform+"=FILE")
}

// Complete uploads the stepmux-fetch that p needs next to it, unless it is there already. It does nothing unless p is
// a stepmux-vm that Config.Bootstrap has uploaded. start starts a process on the VM. Complete waits for the upload,
// or until ctx ends.
func (p *Program) Complete(ctx context.Context, start Starter) error {
	if p.binary == nil || p.binary.beside == nil {
		return nil
	}
	at := p.at
	at.name = wire.FetchProgram
	if _, _, err := uploadTo(ctx, start, at, p.binary.beside); err != nil {
		return fmt.Errorf("put %s on the VM: %w", wire.FetchProgram, err)
	}
	return nil
}

// target is where a program is uploaded to: the directory dir, in a place that uploadScript knows. mode is that of
// the file and of the directories that are created for it.
type target struct{ place, dir, name, mode string }

// The modes of a target.
const (
	private = "700"
	shared  = "755"
)

// upload uploads bin to the first place that accepts it, unless it is there already. It returns the path and the
// target. The place "cache" is the user's cache directory.
func (f *finder) upload(ctx context.Context, bin *Binary) (command string, at target, err error) {
	told, err := bin.facts()
	if err != nil {
		return "", at, fmt.Errorf("put stepmux on the VM: %w", &os.PathError{Op: "read", Path: bin.name, Err: err})
	}
	var tried []string
	first, mode := "cache", private
	if f.Shared {
		first, mode = "/var/lib", shared // only root can enter root's cache directory
	}
	for _, place := range slices.Compact([]string{first, f.TempDir, "/var/tmp"}) {
		at = target{place, told.sum[:wire.UploadDigits], "stepmux", mode}
		command, sent, err := uploadTo(ctx, f.Conn, at, bin)
		_, local := errors.AsType[*os.PathError](err)
		switch {
		case err == nil:
			f.sent = sent
			return command, at, nil
		case local:
			return "", at, fmt.Errorf("put stepmux on the VM: %w", err)
		case mux.IsLost(err), ctx.Err() != nil, errors.Is(err, mux.ErrForbidden):
			return "", at, err
		}
		if place == "cache" {
			place = "the user's cache"
		}
		tried = append(tried, fmt.Sprintf("in %s: %v", place, err))
	}
	err = fmt.Errorf("put stepmux for %s on the VM: %s", bin.platform, strings.Join(tried, "; "))
	return "", at, notStarted(err, "", "make room, or install it there")
}

// uploadTo uploads bin to one place. It returns the path, and whether bytes were sent: the program may be there
// already. The error's text says why the place does not accept it.
func uploadTo(ctx context.Context, start Starter, at target, bin *Binary) (command string, sent bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, uploadTimeout,
		fmt.Errorf("the upload took longer than %v", uploadTimeout))
	defer cancel()
	told, err := bin.facts()
	if err != nil {
		return "", false, &os.PathError{Op: "read", Path: bin.name, Err: err}
	}
	stderr := &tail.Writer{}
	process, err := start.Start(ctx, mux.Command{Argv: uploadArgv(at, told), Stderr: stderr})
	if err != nil {
		return "", false, err
	}
	defer process.Close()
	defer context.AfterFunc(ctx, func() { process.Close() })()
	answers := bufio.NewReader(io.LimitReader(process, maxAnswer))
	answer, err := readAnswer(answers)
	if err == nil && (answer == sendPlain || answer == sendPacked) {
		sent = true
		if err = bin.writeTo(process, answer == sendPacked, told.size); err == nil {
			if answer == sendPacked {
				err = process.CloseWrite() // gzip reads to the end
			}
			if err == nil {
				answer, err = readAnswer(answers)
			}
		} else if _, local := errors.AsType[*os.PathError](err); local {
			return "", false, err
		}
	}
	_ = process.CloseWrite() // fails only if the process has ended, which Wait reports
	ended := process.Wait(ctx)
	switch {
	case mux.IsLost(ended):
		return "", false, ended
	case ctx.Err() != nil:
		return "", false, context.Cause(ctx)
	case err == nil && ended == nil && path.IsAbs(answer):
		return answer, sent, nil
	case stderr.String() != "":
		return "", false, errors.New(stderr.String())
	case ended != nil:
		return "", false, ended
	default:
		return "", false, errors.Join(err, errors.New("the VM did not confirm that it has the program"))
	}
}

// The answers of uploadScript that ask for the program's bytes.
const (
	sendPlain  = "send"
	sendPacked = "send gzip"
)

// readAnswer reads the next answer of uploadScript: sendPlain, sendPacked, or the program's path.
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

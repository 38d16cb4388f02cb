package commands

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/stepmux/stepmux/internal/buildinfo"
	"github.com/stepmux/stepmux/internal/filelock"
	"github.com/stepmux/stepmux/internal/wire"
)

// besideWait is how long a program that a manager has put on the VM waits for the one beside it, which the manager
// sends later. Tests change it.
var besideWait = 2 * time.Minute

// ToFetchProgram makes this process the program stepmux-fetch, which is in the directory of this program's file, with
// the same arguments. If that program was built together with this one, its file must have the checksum of then: jobs
// may have put another one in its place. ToFetchProgram returns only if that fails, or if ctx ends.
func ToFetchProgram(ctx context.Context) error {
	own, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	path := filepath.Join(filepath.Dir(own), wire.FetchProgram)
	file, err := openBeside(ctx, path)
	if err != nil {
		return fmt.Errorf("find the program for the network: %w (put the %s of the same release beside %s, or let "+
			"stepmux run --bootstrap put both there)", err, wire.FetchProgram, filepath.Base(own))
	}
	defer file.Close()
	if want := buildinfo.FetchSum(); want != "" {
		sum := sha256.New()
		if _, err := io.Copy(sum, file); err != nil {
			return fmt.Errorf("read the program for the network: %w", err)
		}
		if is := hex.EncodeToString(sum.Sum(nil)); is != want {
			return fmt.Errorf("%s has changed, or is of another release: its SHA-256 is %s, not %s (put the one of this "+
				"release there)", path, is, want)
		}
	}
	name := os.Args[0]
	if strings.HasPrefix(name, "/proc/self/") {
		name = wire.ProgramName
	}
	// Not the file at path, which may be another one by now. The kernel opens the program before it closes this file.
	err = syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), append([]string{name}, os.Args[1:]...), os.Environ())
	return fmt.Errorf("start %s: %w", path, err)
}

// openBeside opens the program at path. In the directory of an upload it waits for it.
func openBeside(ctx context.Context, path string) (file *os.File, err error) {
	file, err = os.Open(path)
	if !errors.Is(err, fs.ErrNotExist) || !uploaded(filepath.Dir(path)) {
		return file, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, besideWait, fmt.Errorf("%s did not arrive within %v", path, besideWait))
	defer cancel()
	err = filelock.Poll(ctx, func() (bool, error) {
		file, err = os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return true, err
	})
	return file, err
}

// uploaded reports whether dir is the directory that a manager has made for this program: it has the beginning of the
// program's checksum as its name.
func uploaded(dir string) bool {
	sum, err := buildinfo.Checksum()
	return err == nil && filepath.Base(dir) == sum[:wire.UploadDigits]
}

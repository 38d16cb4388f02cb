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
	"github.com/stepmux/stepmux/internal/pause"
	"github.com/stepmux/stepmux/internal/wire"
)

// besideWait bounds the wait for stepmux-fetch in the directory of an upload: the manager sends it later.
const besideWait = 2 * time.Minute

// ToFetchProgram replaces this process by the program stepmux-fetch, which is in the directory of this program's file,
// with the same arguments. If both were built together, its file must have the checksum from that build, because a job
// may have put another file there. ToFetchProgram returns only if that fails.
func ToFetchProgram() error {
	own, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	path := filepath.Join(filepath.Dir(own), wire.FetchProgram)
	file, err := openBeside(path)
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
	// Not the file at path, which may be another one now. The kernel opens the program before it closes this file.
	err = syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), append([]string{name}, os.Args[1:]...), os.Environ())
	return fmt.Errorf("start %s: %w", path, err)
}

// openBeside opens the program at path. In the directory of an upload it waits for it.
func openBeside(path string) (file *os.File, err error) {
	file, err = os.Open(path)
	if !errors.Is(err, fs.ErrNotExist) || !wire.IsUploadDir(filepath.Base(filepath.Dir(path))) {
		return file, err
	}
	late := fmt.Errorf("%s did not arrive within %v", path, besideWait)
	ctx, cancel := context.WithTimeoutCause(context.Background(), besideWait, late)
	defer cancel()
	err = pause.Until(ctx, func() (bool, error) {
		file, err = os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return true, err
	})
	return file, err
}

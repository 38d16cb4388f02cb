package isolate

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

const (
	// sudoTimeout bounds the call of sudo that finds out whether the user can become root.
	sudoTimeout = 5 * time.Second
	// sudoBytes bounds the file with its answer, and sudoAge says how long that is valid.
	sudoBytes, sudoAge = 1 << 10, 24 * time.Hour
)

// sudoRemedy is the remedy of errSudo.
const sudoRemedy = "set the isolation by name, or take the rule out of sudoers"

var errSudo = errors.New("the user can become root by sudo without a password; in a user namespace sudo cannot " +
	"work, and such a user can leave it (" + sudoRemedy + ")")

// Choose returns the level that Auto stands for. If that is Off, the error says why. sudo logs a refusal, so it is
// asked once a day: the answer is kept in the user's cache directory, where no build with isolation can change it.
func Choose(ctx context.Context) (vmconfig.Level, error) {
	if os.Geteuid() == 0 {
		return vmconfig.Processes, nil
	}
	sudo := findSudo()
	if sudo == "" {
		return vmconfig.Processes, nil
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	home := os.Getenv("HOME")
	file := filepath.Join(home, ".cache/stepmux/sudo")
	if err == nil && filepath.IsAbs(home) {
		if answer, known := readAnswer(file, boot); known {
			return level(answer)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, sudoTimeout)
	defer cancel()
	can := succeeds(ctx, sudo, "-n", "true")
	if err == nil && filepath.IsAbs(home) && ctx.Err() == nil {
		keepAnswer(file, boot, can)
	}
	return level(can)
}

// succeeds runs a command without input and output, and reports whether it exits with 0. It kills the command when ctx
// ends. It does not use os/exec, which would make the VM's end larger.
func succeeds(ctx context.Context, command ...string) bool {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer null.Close()
	process, err := os.StartProcess(command[0], command, &os.ProcAttr{Files: []*os.File{null, null, null}})
	if err != nil {
		return false
	}
	defer context.AfterFunc(ctx, func() { _ = process.Kill() })() // it may have ended
	state, err := process.Wait()
	return err == nil && state.Success()
}

func level(canBecomeRoot bool) (vmconfig.Level, error) {
	if canBecomeRoot {
		return vmconfig.Off, errSudo
	}
	return vmconfig.Processes, nil
}

// sudoOwner is the owner of sudo and of its directory. It is a variable for tests.
var sudoOwner = 0

// findSudo returns the path of sudo, empty if the machine has no sudo. It is called outside the isolation, with a PATH
// that may have directories of the user, such as ~/.local/bin. A build can put a program there, so only root's sudo
// counts.
func findSudo() string {
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/bin", "/usr/local/bin") {
		path := filepath.Join(dir, "sudo")
		var above, st unix.Stat_t
		if filepath.IsAbs(path) && unix.Stat(dir, &above) == nil && unix.Stat(path, &st) == nil &&
			st.Mode&unix.S_IFMT == unix.S_IFREG && int(above.Uid) == sudoOwner && int(st.Uid) == sudoOwner {
			return path
		}
	}
	return ""
}

// readAnswer returns the answer in file. known is false if it is of an earlier boot or too old.
func readAnswer(file string, boot []byte) (can, known bool) {
	fi, err := os.Lstat(file)
	if err != nil || !fi.Mode().IsRegular() || time.Since(fi.ModTime()).Abs() > sudoAge {
		return false, false
	}
	text, err := boundedfile.ReadBy(os.OpenFile, file, sudoBytes)
	answer, ours := bytes.CutPrefix(text, boot)
	can = strings.TrimSpace(string(answer)) == "yes"
	return can, err == nil && ours
}

// keepAnswer writes file. If it fails, the next build asks again.
func keepAnswer(file string, boot []byte, can bool) {
	answer := "no"
	if can {
		answer = "yes"
	}
	if os.MkdirAll(filepath.Dir(file), 0o700) != nil {
		return
	}
	temp, err := os.CreateTemp(filepath.Dir(file), "sudo-")
	if err != nil {
		return
	}
	_, err = temp.Write(append(bytes.Clone(boot), answer...))
	if errors.Join(err, temp.Close()) != nil || os.Rename(temp.Name(), file) != nil {
		_ = os.Remove(temp.Name())
	}
}

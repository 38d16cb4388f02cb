package wire

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

const (
	// SocketBase is the directory below the VM's temporary directory that holds one directory for each build. If
	// another user owns it, serve uses SocketBase-<uid> instead.
	SocketBase = "gitlab-runner-steps"
	// SocketName is the socket's file name in the build's directory.
	SocketName = "step-runner.sock"
	// MaxSocketPath is the longest path of a unix socket, in bytes: sun_path less its NUL (unix(7)).
	MaxSocketPath = 107
)

// SocketPath returns <tmp>/gitlab-runner-steps/<build id>/step-runner.sock. It uses slashes on every platform, because
// the VM is a Unix machine. It fails if tmp is not absolute or the path is too long for a socket.
func SocketPath(tmp string, id BuildID) (string, error) {
	if !path.IsAbs(tmp) {
		return "", fmt.Errorf("remote temporary directory %q is not an absolute path", tmp)
	}
	if _, err := ParseBuildID(string(id)); err != nil {
		return "", err
	}
	p := path.Join(tmp, SocketBase, string(id), SocketName)
	if err := CheckSocketPath(p); err != nil {
		return "", err
	}
	return p, nil
}

// CheckSocketPath returns an error unless p is a valid address of a unix socket: absolute, clean, without control
// characters, and no longer than MaxSocketPath.
func CheckSocketPath(p string) error {
	switch {
	case !path.IsAbs(p):
		return fmt.Errorf("socket path %q is not absolute", clip(p))
	case len(p) > MaxSocketPath:
		return fmt.Errorf(
			"socket path %q is %d bytes, a unix socket allows %d: use a shorter build ID or temporary directory",
			clip(p), len(p), MaxSocketPath,
		)
	case path.Clean(p) != p:
		return fmt.Errorf("socket path %q is not clean, want %q", p, path.Clean(p))
	}
	for i := range len(p) {
		if p[i] < 0x20 || p[i] == 0x7f {
			return fmt.Errorf("socket path %q has a control character at byte %d", p, i)
		}
	}
	return nil
}

// SameBuildSocket reports whether got, the path that serve reports, is want or want moved from SocketBase to the
// per-user base SocketBase-<uid>. It accepts no other path, because got comes from the VM.
func SameBuildSocket(want, got string) bool {
	if want == got {
		return true
	}
	wantBase, wantRest := splitBase(want)
	gotBase, gotRest := splitBase(got)
	if path.Base(wantBase) != SocketBase || wantRest != gotRest || path.Clean(got) != got {
		return false
	}
	uid, ok := strings.CutPrefix(gotBase, wantBase+"-")
	return ok && isUID(uid)
}

// IsSocketBase reports whether name, the last element of a path, is SocketBase or SocketBase-<uid>.
func IsSocketBase(name string) bool {
	uid, ok := strings.CutPrefix(name, SocketBase+"-")
	return name == SocketBase || ok && isUID(uid)
}

// isUID reports whether s is a user number as the kernel counts them, in its one decimal form.
func isUID(s string) bool {
	n, err := strconv.ParseUint(s, 10, 32)
	return err == nil && strconv.FormatUint(n, 10) == s
}

// splitBase splits /tmp/base/id/name into /tmp/base and id/name.
func splitBase(p string) (base, rest string) {
	dir, name := path.Split(p)
	base, id := path.Split(path.Clean(dir))
	return path.Clean(base), path.Join(id, name)
}

// clip shortens hostile text for an error message.
func clip(s string) string {
	const most = 160
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

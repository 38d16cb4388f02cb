package clone

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// loginHelper is the program that git asks for the login. It asks by descriptor 4, a socket that git's children
// inherit. Every process of this user can read git's arguments and environment, and can open the files and pipes that
// git has open, but no sockets. It needs no program but the shell that git starts helpers by.
const loginHelper = `!f() { test "$1" = get || return 0; echo get >&4; ` +
	`IFS= read -r user <&4 && IFS= read -r word <&4 && printf 'username=%s\npassword=%s\n' "$user" "$word"; }; f`

// login answers git, and the gits that it starts for submodules, one after the other.
type login struct {
	git  *os.File // git's end
	ours net.Conn
	wg   sync.WaitGroup
}

// newLogin starts a goroutine that answers. The caller calls close.
func newLogin(user, password string) (*login, error) {
	if strings.ContainsAny(user+password, "\r\n\x00") {
		return nil, errors.New("git cannot take the login: it has a line break or a NUL byte")
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket for git: %w", err)
	}
	l := &login{git: os.NewFile(uintptr(ends[1]), "login")}
	ours := os.NewFile(uintptr(ends[0]), "login")
	defer ours.Close()
	if l.ours, err = net.FileConn(ours); err != nil {
		l.git.Close()
		return nil, fmt.Errorf("make a socket for git: %w", err)
	}
	l.wg.Go(func() {
		for questions := bufio.NewScanner(l.ours); questions.Scan(); {
			if _, err := fmt.Fprintf(l.ours, "%s\n%s\n", user, password); err != nil {
				return
			}
		}
	})
	return l, nil
}

// close stops the goroutine and waits for it.
func (l *login) close() {
	l.git.Close()
	l.ours.Close()
	l.wg.Wait()
}

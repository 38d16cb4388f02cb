package isolate

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/api/vmconfig"
)

// needed are the capabilities that an init keeps in its user namespace: to mount, and to inspect its own processes.
var needed = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE}

// Attributes makes sys start a process as the first one in the namespaces of level l. An ordinary user must call
// MapUser next. If sys has a Credential, root starts it as an ordinary user, who needs no user namespace then.
func Attributes(l vmconfig.Level, sys *syscall.SysProcAttr) {
	if l == vmconfig.Off {
		return
	}
	sys.Cloneflags |= unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC
	if os.Geteuid() != 0 {
		// As a vfork, which package syscall does only without a user namespace, because its child may wait for UidMappings.
		// A copy of our memory would make each page of it fault once more, here and there.
		sys.Cloneflags |= unix.CLONE_NEWUSER | unix.CLONE_VM | unix.CLONE_VFORK
	}
	if os.Geteuid() != 0 || sys.Credential != nil {
		sys.AmbientCaps = needed
		if l == vmconfig.Private {
			sys.AmbientCaps = append(slices.Clip(needed), unix.CAP_DAC_OVERRIDE) // an overlay makes directories of mode 0
		}
	}
}

// MapUser maps our user and group to themselves in the user namespace of process pid, which was started with Attributes
// and waits. UidMappings of the standard library do not work for a parent that is not dumpable, because its child is
// not dumpable either until its exec. For root there is nothing to do.
func MapUser(pid int) error {
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		return nil
	}
	dir := "/proc/" + strconv.Itoa(pid) + "/"
	for _, file := range []struct{ name, text string }{
		{"setgroups", "deny"},
		{"uid_map", fmt.Sprintf("%d %d 1", uid, uid)},
		{"gid_map", fmt.Sprintf("%d %d 1", gid, gid)},
	} {
		f, err := openSoon(dir + file.name)
		if err == nil {
			_, err = f.WriteString(file.text)
			f.Close()
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", file.name, err)
		}
	}
	return nil
}

// mapTimeout bounds the wait for an init whose files in /proc still belong to root.
const mapTimeout = 10 * time.Second

// openSoon opens a file of an init in /proc to write. Of a program that its user cannot read, the file belongs to root
// until the init has begun to run.
func openSoon(name string) (*os.File, error) {
	end := time.Now().Add(mapTimeout)
	for pause := 100 * time.Microsecond; ; pause *= 2 {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if !errors.Is(err, unix.EACCES) {
			return f, err
		}
		if time.Now().After(end) { // the machine has not refused it
			return nil, fmt.Errorf("the build's init has not begun to run after %v", mapTimeout)
		}
		<-time.NewTimer(pause).C
	}
}

// Closed reports whether this machine allows no namespaces of a kind that Attributes asks for.
func Closed() bool {
	for _, kind := range []string{"user", "pid", "mnt", "ipc"} {
		text, err := os.ReadFile("/proc/sys/user/max_" + kind + "_namespaces")
		if err == nil && strings.TrimSpace(string(text)) == "0" {
			return true
		}
	}
	return false
}

// Remedy returns advice for an operator about err, the reason why a level is not available on this machine. It may be
// empty.
func Remedy(err error) string {
	switch {
	case err == nil || os.Geteuid() == 0:
		return ""
	case errors.Is(err, errSudo):
		return sudoRemedy
	}
	for _, s := range []struct{ name, closed, remedy string }{
		{"user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"},
		{"kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"},
		{
			"kernel/apparmor_restrict_unprivileged_userns", "1",
			"an AppArmor profile with userns for this program, or sysctl kernel.apparmor_restrict_unprivileged_userns=0",
		},
	} {
		text, readErr := os.ReadFile("/proc/sys/" + s.name)
		if readErr == nil && strings.TrimSpace(string(text)) == s.closed {
			return s.remedy
		}
	}
	return ""
}

package walls

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// guarded are the files of a home from which a login or a shell starts. Those of directories end with a slash.
var guarded = []string{
	".ssh/", ".config/systemd/", ".config/environment.d/", ".config/autostart/", ".config/fish/", ".local/share/systemd/",
	".cache/stepmux/",
	".bashrc", ".bash_profile", ".bash_login", ".profile", ".bash_logout", ".bash_aliases",
	".zshenv", ".zprofile", ".zshrc", ".zlogin", ".zlogout", ".kshrc", ".mkshrc", ".cshrc", ".tcshrc", ".login", ".logout",
	".pam_environment", ".rhosts", ".shosts", ".forward",
}

// created are those that are made if they are missing, with their text: otherwise a build could make them. What is made
// changes nothing for a shell. The files of a shell are made if it is the login's.
var created = map[string]map[string]string{
	"": {".ssh/": "", ".config/systemd/": "", ".config/environment.d/": "", ".cache/stepmux/": ""},
	"bash": {".bashrc": "", ".bash_login": "", ".profile": "", ".bash_profile": "" +
		"# Made by stepmux, so that no build can make it. It does as bash does without it.\n" +
		"if [ -s ~/.bash_login ]; then . ~/.bash_login; elif [ -r ~/.profile ]; then . ~/.profile; fi\n"},
	"zsh":  {".zshenv": "", ".zprofile": "", ".zshrc": "", ".zlogin": ""},
	"sh":   {".profile": ""},
	"dash": {".profile": ""},
	"fish": {".config/fish/": ""},
}

// guard makes the files read-only from which later builds start.
func (r *Room) guard() error {
	pinned := map[string]bool{}
	if home := r.spec.Home; r.spec.Level == Processes && home != "" && home != "/" && isDir(home) {
		if err := Prepare(home, r.spec.Shell); err != nil {
			return err
		}
		for _, name := range guarded {
			if err := r.freezeIn(home, filepath.Join(home, name), pinned); err != nil {
				return err
			}
		}
	}
	for _, path := range r.spec.ReadOnly {
		if within(path, r.spec.Home) && path != r.spec.Home {
			if err := create(path, true, ""); err != nil {
				return err
			}
		}
		if err := r.freezeIn(r.spec.Home, path, pinned); err != nil {
			return err
		}
	}
	return nil
}

// Prepare makes the missing files of a home whose user has this login shell, so that no build can make them.
func Prepare(home, shell string) error {
	for _, shell := range []string{"", filepath.Base(cmp.Or(shell, "bash"))} {
		for name, text := range created[shell] {
			if err := create(filepath.Join(home, name), strings.HasSuffix(name, "/"), text); err != nil {
				return err
			}
		}
	}
	return nil
}

// create makes the file or directory path, unless it is there or the user may not: then no build may either.
func create(path string, dir bool, text string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	switch {
	case err != nil:
	case dir:
		err = os.Mkdir(path, 0o700)
	default:
		var f *os.File
		if f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644); err == nil {
			_, err = f.WriteString(text)
			err = errors.Join(err, f.Close())
		}
	}
	if err == nil || errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return nil // another build may have made it
	}
	return bare("make", path, err)
}

// freezeIn freezes path if it is there. A directory on the way to it from home could be renamed, and another one put in
// its place; a place where something is mounted cannot. A symbolic link cannot be held: there nothing can be mounted.
func (r *Room) freezeIn(home, path string, pinned map[string]bool) error {
	fi, err := os.Lstat(path)
	if err != nil || fi.Mode()&fs.ModeSymlink != 0 {
		return nil // an error: there is none
	}
	var way []string
	for dir := filepath.Dir(path); within(dir, home); dir = filepath.Dir(dir) {
		way = append(way, dir)
	}
	for _, dir := range slices.Backward(way) {
		if pinned[dir] {
			continue
		}
		pinned[dir] = true
		if err := mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
	}
	return freeze(path)
}

package sshtarget

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kevinburke/ssh_config"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/subprocess"
)

// maxConfig bounds a configuration file.
const maxConfig = 1 << 20

// sshLimit bounds `ssh -G`, which may run commands that the configuration names.
var sshLimit = subprocess.Limit{Time: 15 * time.Second, Bytes: 1 << 20}

// config evaluates ssh_config files. The zero value is empty. Either `ssh -G` or the library evaluates all files,
// because the two may disagree about one. It is not safe for concurrent use.
type config struct {
	file     string // for ssh -F; empty for the default ones
	sources  []source
	ssh      string              // path of ssh; empty if the library evaluates
	defaults map[string][]string // values of ssh without any configuration; nil before they are needed
	known    map[place]lookup    // by ssh
	parsed   []*ssh_config.Config
}

// source is one configuration file.
type source struct {
	name string
	text []byte
}

// load reads a configuration file. If file is empty, it reads the files that ssh reads; if it is "none", no file.
//
// `ssh -G` evaluates them. The library evaluates them if ssh is not installed, does not run, or uses another home
// directory than $HOME. Files with Match always need ssh.
func load(file string) (*config, error) {
	c := &config{file: file, known: map[place]lookup{}}
	sameHome := true
	if home, err := os.UserHomeDir(); err == nil {
		// ssh looks up the home directory in the password database.
		if me, err := user.Current(); err == nil && me.HomeDir != home {
			sameHome = false
			if file == "" {
				c.file = filepath.Join(home, ".ssh", "config")
			}
		}
	}
	if err := c.read(file); err != nil {
		return nil, err
	}
	ssh, err := exec.LookPath("ssh")
	if err == nil && sameHome {
		c.ssh = ssh
		return c, nil
	}
	if found := c.onlySSH(); found != "" {
		if err != nil {
			return nil, needsSSH(found, err)
		}
		c.ssh = ssh
		return c, nil
	}
	return c, c.parse()
}

// read reads the files.
func (c *config) read(file string) error {
	var names []string
	switch file {
	case "none":
		return nil
	case "":
		if home, err := os.UserHomeDir(); err == nil {
			names = append(names, filepath.Join(home, ".ssh", "config"))
		}
		names = append(names, "/etc/ssh/ssh_config")
	default:
		names = []string{file}
	}
	for _, name := range names {
		text, err := boundedfile.Read(name, maxConfig)
		if errors.Is(err, os.ErrNotExist) && file == "" {
			continue
		}
		if err != nil {
			return fmt.Errorf("read ssh_config: %w", err)
		}
		c.sources = append(c.sources, source{name, text})
	}
	return nil
}

func needsSSH(found string, err error) error {
	return fmt.Errorf("read ssh_config: it has %s, which only ssh evaluates: "+
		"install openssh-client, or name another file: %w", found, err)
}

// settings returns the configuration for a machine.
func (c *config) settings(ctx context.Context, where place) (*settings, error) {
	values, err := c.lookup(ctx, where)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where.host, err)
	}
	s, err := newSettings(where, values)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where.host, err)
	}
	return s, nil
}

func (c *config) lookup(ctx context.Context, where place) (lookup, error) {
	if where.literal || len(c.sources) == 0 {
		return func(string) []string { return nil }, nil
	}
	if c.ssh != "" && c.defaults == nil {
		if err := c.tryDefaults(ctx); err != nil {
			return nil, err
		}
	}
	if c.ssh == "" {
		return c.inParsed(where), nil
	}
	if values, ok := c.known[where]; ok {
		return values, nil
	}
	values, err := c.askSSH(ctx, where)
	if err == nil {
		c.known[where] = values
	}
	return values, err
}

// tryDefaults finds out whether ssh runs here, and with which defaults. If it does not, for example because the
// password database has no entry for our user, the library takes over.
func (c *config) tryDefaults(ctx context.Context) error {
	out, err := subprocess.Output(ctx, []string{c.ssh, "-G", "-T", "-F", "none", "--", "localhost"}, sshLimit)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil:
		c.defaults = parseDump(out)
		return nil
	}
	if found := c.onlySSH(); found != "" {
		return needsSSH(found, err)
	}
	c.ssh = ""
	return c.parse()
}

// askSSH lets ssh evaluate the configuration. It connects to nothing.
func (c *config) askSSH(ctx context.Context, where place) (lookup, error) {
	if strings.HasPrefix(where.host, "-") || strings.HasPrefix(where.user, "-") || strings.HasPrefix(where.port, "-") {
		return nil, errors.New("no machine has such a name")
	}
	argv := []string{c.ssh, "-G", "-T"}
	if c.file != "" {
		argv = append(argv, "-F", c.file)
	}
	if where.user != "" {
		argv = append(argv, "-l", where.user)
	}
	if where.port != "" {
		argv = append(argv, "-p", where.port)
	}
	out, err := subprocess.Output(ctx, append(argv, "--", where.host), sshLimit)
	switch {
	case err != nil && strings.Contains(err.Error(), "jumphost loop"):
		return nil, loopError([]string{where.host, where.host})
	case err != nil:
		return nil, err
	}
	values := parseDump(out)
	for keyword, all := range values {
		if slices.Equal(all, c.defaults[keyword]) {
			delete(values, keyword) // it is a default, not configuration
		}
	}
	if host := values["hostname"]; len(host) == 1 && strings.EqualFold(host[0], where.host) {
		delete(values, "hostname") // ssh writes it in lower case
	}
	if files := values["userknownhostsfile"]; len(files) == 1 {
		values["userknownhostsfile"] = []string{requote(files[0])}
	}
	return func(keyword string) []string { return values[strings.ToLower(keyword)] }, nil
}

// parseDump reads the output of ssh -G: a keyword in lower case and a value on each line.
func parseDump(out []byte) map[string][]string {
	values := map[string][]string{}
	for line := range bytes.Lines(out) {
		keyword, value, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		values[keyword] = append(values[keyword], value)
	}
	return values
}

// requote puts quotes around names of files that contain blanks. ssh -G prints names without quotes. A word that does
// not begin a path belongs to the name before it, if there is such a file.
func requote(files string) string {
	var out []string
	words := strings.Fields(files)
	for len(words) > 0 {
		n := 1
		for n < len(words) && !filepath.IsAbs(words[n]) {
			n++
		}
		if name := strings.Join(words[:n], " "); n > 1 && exists(name) {
			out = append(out, `"`+name+`"`)
		} else {
			out = append(out, words[:n]...)
		}
		words = words[n:]
	}
	return strings.Join(out, " ")
}

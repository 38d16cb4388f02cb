package sshclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/kevinburke/ssh_config"

	"github.com/stepmux/stepmux/internal/subprocess"
)

// maxConfig bounds a configuration file.
const maxConfig = 1 << 20

// sshLimit bounds `ssh -G`, which may run commands of the configuration's.
var sshLimit = subprocess.Limit{Time: 15 * time.Second, Bytes: 1 << 20}

// Config is what ssh_config files say. The zero value says nothing.
type Config struct {
	file  string // for ssh -F; empty for the default ones
	ssh   string // path of ssh, if that has to be asked
	files []*ssh_config.Config
}

// Load reads a configuration file, or, if file is empty, those that ssh reads; "none" is none. Where Match is
// used, also in files that are included, `ssh -G` evaluates all of it.
func Load(file string) (*Config, error) {
	c := &Config{file: file}
	var names []string
	switch file {
	case "none":
		return c, nil
	case "":
		if home, err := os.UserHomeDir(); err == nil {
			own := filepath.Join(home, ".ssh", "config")
			names = append(names, own)
			if me, err := user.Current(); err == nil && me.HomeDir != home {
				c.file = own // ssh would look where the password database says
			}
		}
		names = append(names, "/etc/ssh/ssh_config")
	default:
		names = []string{file}
	}
	for _, name := range names {
		text, err := readConfig(name)
		if errors.Is(err, os.ErrNotExist) && file == "" {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read ssh_config: %w", err)
		}
		if err := c.add(name, text); err != nil {
			return nil, fmt.Errorf("read ssh_config %s: %w", name, err)
		}
	}
	return c, nil
}

func (c *Config) add(name string, text []byte) error {
	text = absoluteIncludes(name, text)
	if hasMatch(text, maxIncludes) {
		ssh, err := exec.LookPath("ssh")
		if err != nil {
			return fmt.Errorf("it has Match, which only ssh evaluates: install openssh-client, or name another file: %w", err)
		}
		c.ssh = ssh
		return nil
	}
	parsed, err := decode(text)
	if err != nil {
		return err
	}
	c.files = append(c.files, parsed)
	return nil
}

// decode parses a file. The library panics on some that it cannot parse.
func decode(text []byte) (c *ssh_config.Config, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it cannot be parsed: %v", r)
		}
	}()
	return ssh_config.DecodeBytes(text)
}

func readConfig(name string) ([]byte, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s is a directory: name a file", name)
	case !info.Mode().IsRegular() && name != os.DevNull:
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxConfig {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, maxConfig)
	}
	return text, nil
}

// settings returns what is configured for a machine.
func (c *Config) settings(ctx context.Context, where place) (*settings, error) {
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

func (c *Config) lookup(ctx context.Context, where place) (lookup, error) {
	switch {
	case where.literal:
		return func(string) []string { return nil }, nil
	case c.ssh != "":
		return c.askSSH(ctx, where)
	}
	return func(keyword string) []string {
		var all []string
		for _, f := range c.files {
			values, err := f.GetAll(where.host, keyword)
			if err == nil { // the only errors are of nodes that a parsed file does not have
				all = append(all, values...)
			}
		}
		return all
	}, nil
}

// askSSH lets ssh evaluate the configuration. It connects to nothing.
func (c *Config) askSSH(ctx context.Context, where place) (lookup, error) {
	argv := []string{c.ssh, "-G"}
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
	if err != nil {
		return nil, err
	}
	values := map[string][]string{}
	for line := range bytes.Lines(out) {
		keyword, value, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		if keyword == "identityfile" && defaultIdentity(value) {
			continue // it tells of those that nobody named, too
		}
		values[keyword] = append(values[keyword], value)
	}
	return func(keyword string) []string { return values[strings.ToLower(keyword)] }, nil
}

// defaultIdentity reports whether ssh tries a file with a key if none is named.
func defaultIdentity(name string) bool {
	switch name {
	case "~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ecdsa_sk", "~/.ssh/id_ed25519", "~/.ssh/id_ed25519_sk", "~/.ssh/id_xmss", "~/.ssh/id_dsa":
		return true
	}
	return false
}

package sshtarget

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/mux/login"
)

// PolicyHelp describes the texts that ParsePolicy reads, for --help.
const PolicyHelp = `Host keys: --host-key may repeat. Each policy accepts a key, refuses it, or passes it to the
next one; a key that the last one passes on is refused.
  known-hosts        the files of --known-hosts, or ssh's own, with @cert-authority and @revoked (the default)
  pinned:ID=KEY      the machine ID has this key, in the form "ssh-ed25519 AAAA..."; it does not apply to other
                     machines. A jump host's ID is USER@HOST:PORT
  command:CMD ARG... the lines that CMD prints in the form of known_hosts; %-tokens as in ssh's KnownHostsCommand
  first-use[:FILE]   the key that a machine showed when it was first reached. Machines are told apart by their ID, not
                     by address: see --instance. FILE is created if it does not exist (default
                     ~/.local/state/stepmux/first-use)
  insecure           any key: anybody on the network can read and change everything
A revoked key is refused wherever known-hosts stands in the list.`

// Policy is one policy for host keys.
type Policy struct {
	kind   string
	id     string // of pinned
	fixed  login.HostKeys
	secure bool
}

// The policies of these kinds depend on the machine.
const (
	knownHosts = "known-hosts"
	pinned     = "pinned"
)

// ParsePolicy reads a policy. See PolicyHelp.
func ParsePolicy(text string) (Policy, error) {
	kind, rest, has := strings.Cut(text, ":")
	p := Policy{kind: kind, secure: kind != "insecure"}
	var err error
	switch {
	case kind == knownHosts && !has:
	case kind == pinned && has:
		p.id, p.fixed, err = parsePin(rest)
	case kind == "command" && has:
		p.fixed, err = login.HostKeyCommand(strings.Fields(rest)...)
	case kind == "first-use":
		p.fixed, err = firstUse(rest)
	case kind == "insecure" && !has:
		p.fixed = login.InsecureHostKeys()
	default:
		err = errors.New("use known-hosts, pinned:ID=KEY, command:CMD, first-use[:FILE] or insecure")
	}
	if err != nil {
		return Policy{}, fmt.Errorf("%q: %w", text, err)
	}
	return p, nil
}

// Insecure reports whether the policy accepts any key, so that anybody can pose as the machine.
func (p Policy) Insecure() bool { return !p.secure }

func parsePin(text string) (id string, keys login.HostKeys, err error) {
	id, line, ok := strings.Cut(text, "=")
	if !ok || id == "" {
		return "", keys, errors.New("want pinned:ID=KEY")
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		return "", keys, fmt.Errorf("want a public key, as in the VM's /etc/ssh/ssh_host_ed25519_key.pub: %w", err)
	}
	return id, login.PinnedHostKeys(key), nil
}

func firstUse(file string) (login.HostKeys, error) {
	if file == "" {
		state := os.Getenv("XDG_STATE_HOME")
		if !filepath.IsAbs(state) { // the XDG base directory specification ignores relative paths
			home, err := os.UserHomeDir()
			if err != nil {
				return login.HostKeys{}, fmt.Errorf("find a place for the file: %w; use first-use:FILE", err)
			}
			state = filepath.Join(home, ".local", "state")
		}
		file = filepath.Join(state, "stepmux", "first-use")
	}
	return login.FirstUse(file)
}

// hostKeys joins the policies for one machine.
func (r *Resolver) hostKeys(id string, s *settings) (login.HostKeys, error) {
	var all []login.HostKeys
	for _, p := range r.cfg.Policies {
		switch {
		case p.kind == knownHosts:
			keys, err := r.knownHosts(s)
			if err != nil {
				return login.HostKeys{}, err
			}
			all = append(all, keys)
		case p.kind != pinned || p.id == id:
			all = append(all, p.fixed)
		}
	}
	if len(all) == 0 {
		return login.HostKeys{}, fmt.Errorf(
			"no key is pinned for %s: add pinned:%s=KEY, or another policy, with --host-key", id, id)
	}
	return login.FirstOf(all...), nil
}

// knownHosts reads the known_hosts files for a machine. All files that the operator has named must exist. Of ssh's own
// files one must exist, unless there are other policies.
func (r *Resolver) knownHosts(s *settings) (login.HostKeys, error) {
	help := fmt.Sprintf("; make the file with: ssh-keyscan -p %s %s, check the keys, and name it with --known-hosts",
		s.port, s.host)
	files := r.cfg.KnownHosts
	if len(files) == 0 {
		files = existing(r.defaultKnownHosts(s))
		if len(files) == 0 && len(r.cfg.Policies) == 1 {
			return login.HostKeys{}, fmt.Errorf("there is no known_hosts file of %v%s", r.defaultKnownHosts(s), help)
		}
	}
	key := strings.Join(files, "\x00")
	if keys, ok := r.hosts[key]; ok {
		return keys, nil
	}
	keys, err := login.KnownHosts(files...)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w%s", err, help)
		}
		if len(r.cfg.KnownHosts) > 0 {
			return login.HostKeys{}, OfFlag("--known-hosts", err)
		}
		return login.HostKeys{}, ownFileError{err}
	}
	for _, text := range keys.Warnings() {
		if r.cfg.Warn != nil {
			r.cfg.Warn(text)
		}
	}
	r.hosts[key] = keys
	return keys, nil
}

func (r *Resolver) defaultKnownHosts(s *settings) []string {
	files := s.knownHosts
	if files == nil {
		if home, err := os.UserHomeDir(); err == nil {
			files = append(files, filepath.Join(home, ".ssh", "known_hosts"), filepath.Join(home, ".ssh", "known_hosts2"))
		}
	}
	return append(files[:len(files):len(files)], "/etc/ssh/ssh_known_hosts")
}

// existing leaves out the files that do not exist.
func existing(files []string) []string {
	var all []string
	for _, f := range files {
		if _, err := os.Stat(f); !errors.Is(err, os.ErrNotExist) {
			all = append(all, f)
		}
	}
	return all
}

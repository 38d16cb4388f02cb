package sshclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stepmux/stepmux/internal/subprocess"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// maxHops bounds the jump hosts on the way to a machine.
const maxHops = 8

// ResolverConfig is what an operator adds to ssh_config. It goes before that.
type ResolverConfig struct {
	SSHConfig         string   // file; empty for ssh's own, "none" for none
	Identities        []string // files with private keys
	PassphraseCommand []string // prints the passphrase of the key file %f
	IdentityCommand   []string // prints a private key, and its certificate if it has one, for each connection
	KnownHosts        []string // files
	Policies          []Policy // for host keys; required
	Jump              string   // jump hosts to all machines, as ssh -J has them; empty for what ssh_config says, "none" for none
}

// Resolver finds out how machines are reached. One goroutine uses it.
type Resolver struct {
	cfg    ResolverConfig
	config *Config
	keys   map[string]login.Auth     // by file
	hosts  map[string]login.HostKeys // by files
}

// Target is a machine, and how it is reached.
type Target struct {
	Name string // its identity, or as ssh_config knows it, or host:port; of a jump host user@host:port and the way there
	Addr string // host:port
	SSH  mux.Config
	Jump *Target // nil if there is none
}

// Machine is what is said of a machine by who names it. It goes before what the operator and ssh_config say.
type Machine struct {
	ID    string // its identity; if empty, the Target's Name
	Place string // ssh://[USER@]HOST[:PORT] or [USER@]NAME[:PORT]
	User  string // unless Place names one; empty if not said
	// Auth holds the ways to log in. If empty, those of the operator or ssh_config.
	Auth []login.Auth
	// HostKeys judges its host key. If nil, the operator's policies do.
	HostKeys *login.HostKeys
	// Jump is for this machine what ResolverConfig.Jump is for all.
	Jump string
	// JumpUser and JumpAuth are User and Auth of the hosts that Jump names.
	JumpUser string
	JumpAuth []login.Auth
}

// NewResolver checks cfg and reads the configuration. It runs none of the commands.
func NewResolver(cfg ResolverConfig) (*Resolver, error) {
	if len(cfg.Policies) == 0 {
		return nil, errors.New("no policy for host keys")
	}
	for flag, command := range map[string][]string{"--passphrase-command": cfg.PassphraseCommand, "--identity-command": cfg.IdentityCommand} {
		if len(command) == 0 {
			continue
		}
		if err := subprocess.Look(command); err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
	}
	config, err := Load(cfg.SSHConfig)
	if err != nil {
		return nil, err
	}
	return &Resolver{cfg: cfg, config: config, keys: map[string]login.Auth{}, hosts: map[string]login.HostKeys{}}, nil
}

// Target returns how a machine is reached. ctx bounds the commands that are asked.
func (r *Resolver) Target(ctx context.Context, m Machine) (*Target, error) {
	s, err := r.find(ctx, m.Place, m.User)
	if err != nil {
		return nil, err
	}
	jumps := s.proxyJump
	switch {
	case m.Jump != "":
		jumps, err = r.jumpsTo(ctx, m.Jump, m.JumpUser, s)
	case r.cfg.Jump != "":
		if jumps, err = r.jumpsTo(ctx, r.cfg.Jump, "", s); err != nil {
			err = fmt.Errorf("--jump: %w", err)
		}
	}
	if err != nil {
		return nil, err
	}
	if m.Jump == "" {
		m.JumpUser, m.JumpAuth = "", nil
	}
	jump, err := r.chain(ctx, jumps, []*settings{s}, m)
	if err != nil {
		return nil, err
	}
	return r.target(ctx, or(m.ID, s.id()), s, jump, m)
}

// jumpsTo returns the jump hosts that jump names on the way to a machine. One that is itself among them is
// reached through those before it.
func (r *Resolver) jumpsTo(ctx context.Context, jump, user string, s *settings) ([]string, error) {
	if jump == "none" {
		return nil, nil
	}
	all := splitList(jump)
	for i, text := range all {
		j, err := r.find(ctx, text, user)
		if err != nil {
			return nil, err
		}
		if j.same(s) {
			return all[:i], nil
		}
	}
	return all, nil
}

// id is what a machine is called where nobody gave it an identity.
func (s *settings) id() string {
	if s.literal {
		return s.addr()
	}
	return s.name
}

func (r *Resolver) find(ctx context.Context, text, user string) (*settings, error) {
	where, err := parsePlace(text)
	if err != nil {
		return nil, err
	}
	where.user = or(where.user, user)
	return r.config.settings(ctx, where)
}

// chain returns the last of jump hosts, of which each is reached through the one before and the first as
// ssh_config says. path is what they are on the way to, the machine m first.
func (r *Resolver) chain(ctx context.Context, jumps []string, path []*settings, m Machine) (*Target, error) {
	var last *Target
	for i, text := range jumps {
		s, err := r.find(ctx, text, m.JumpUser)
		if err != nil {
			return nil, fmt.Errorf("jump host: %w", err)
		}
		longer := append(slices.Clone(path), s)
		if slices.ContainsFunc(path, func(p *settings) bool { return p.name == s.name && p.same(s) }) {
			return nil, fmt.Errorf("jump hosts form a loop: %s (set ProxyJump none for a host that is reached directly)", names(longer))
		}
		if len(longer) > maxHops+1 {
			return nil, fmt.Errorf("more than %d jump hosts on the way: %s", maxHops, names(longer))
		}
		if i == 0 {
			if last, err = r.chain(ctx, s.proxyJump, longer, Machine{}); err != nil {
				return nil, err
			}
		}
		id := s.user + "@" + s.addr()
		if last != nil {
			id += " via " + last.Name
		}
		if last, err = r.target(ctx, id, s, last, Machine{Auth: m.JumpAuth}); err != nil {
			return nil, fmt.Errorf("jump host %s: %w", s.name, err)
		}
		path = longer
	}
	return last, nil
}

// same reports whether both are one login on one machine.
func (s *settings) same(other *settings) bool {
	return s.addr() == other.addr() && s.user == other.user
}

func names(path []*settings) string {
	all := make([]string, len(path))
	for i, s := range path {
		all[i] = s.name
	}
	return strings.Join(all, " -> ")
}

// target returns a machine that has been looked up.
func (r *Resolver) target(ctx context.Context, id string, s *settings, jump *Target, m Machine) (*Target, error) {
	t := &Target{Name: id, Addr: s.addr(), Jump: jump, SSH: mux.Config{User: s.user, HostKeyAlias: s.hostKeyAlias, MachineID: id}}
	var err error
	if len(m.Auth) > 0 {
		t.SSH.Auth, err = withCertificates(m.Auth, s.certificates)
	} else {
		err = r.login(ctx, s, &t.SSH)
	}
	if err != nil {
		return nil, err
	}
	if m.HostKeys != nil {
		t.SSH.HostKeys = *m.HostKeys
		return t, nil
	}
	if t.SSH.HostKeys, err = r.hostKeys(id, s); err != nil {
		return nil, err
	}
	return t, nil
}

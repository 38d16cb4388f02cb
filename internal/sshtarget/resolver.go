package sshtarget

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/subprocess"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// maxHops bounds the jump hosts on the way to a machine.
const maxHops = 8

// ResolverConfig holds the operator's settings for all machines. They override ssh_config.
type ResolverConfig struct {
	SSHConfig         string   // file; empty for ssh's own, "none" to read no file
	Identities        []string // files with private keys
	PassphraseCommand []string // prints the passphrase of the key file %f
	IdentityCommand   []string // prints a private key, and its certificate if there is one, for each connection
	KnownHosts        []string // files
	Policies          []Policy // for host keys; required
	// Jump names the jump hosts to all machines, like ssh -J. If empty, ssh_config decides; "none" means no jump host.
	Jump string
	// KeepaliveInterval, KeepaliveTimeout and SessionLimit are as in mux.Config.
	KeepaliveInterval, KeepaliveTimeout time.Duration
	SessionLimit                        int
	// Warn gets warnings about the files that are read, when a Resolver reads them for the first time. May be nil.
	Warn func(text string)
}

// Resolver finds out how to reach machines. It is not safe for concurrent use.
type Resolver struct {
	cfg       ResolverConfig
	sshConfig *config
	keys      map[string]login.Auth     // by file
	hosts     map[string]login.HostKeys // by files
}

// Target is a machine and the way to it.
type Target struct {
	// Name is the machine's identity, its name in ssh_config, or host:port. For a jump host it is user@host:port with
	// the jump hosts before it.
	Name string
	Addr string // host:port
	SSH  mux.Config
	Jump *Target // nil if it is reached directly
}

// Host names a machine to dial, with settings for it only. They override the operator's and ssh_config.
type Host struct {
	ID    string // its identity; if empty, the Target's Name
	Place string // ssh://[USER@]HOST[:PORT] or [USER@]NAME[:PORT]
	User  string // used if Place names no user; may be empty
	// Auth holds the ways to log in. If empty, those of the operator or ssh_config.
	Auth []login.Auth
	// HostKeys verifies its host key. If nil, the operator's policies do.
	HostKeys *login.HostKeys
	// Jump overrides ResolverConfig.Jump.
	Jump string
	// JumpUser and JumpAuth are User and Auth for the hosts in Jump.
	JumpUser string
	JumpAuth []login.Auth
}

// NewResolver checks cfg and reads the configuration. It runs no command.
func NewResolver(cfg ResolverConfig) (*Resolver, error) {
	if len(cfg.Policies) == 0 {
		return nil, errors.New("no policy for host keys")
	}
	for flag, command := range map[string][]string{
		"--passphrase-command": cfg.PassphraseCommand,
		"--identity-command":   cfg.IdentityCommand,
	} {
		if len(command) == 0 {
			continue
		}
		if err := subprocess.Look(command); err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
	}
	sshConfig, err := load(cfg.SSHConfig)
	if err != nil {
		return nil, err
	}
	return &Resolver{
		cfg: cfg, sshConfig: sshConfig, keys: map[string]login.Auth{}, hosts: map[string]login.HostKeys{},
	}, nil
}

// Target finds out how to reach a machine. ctx bounds the commands that it runs.
func (r *Resolver) Target(ctx context.Context, h Host) (*Target, error) {
	s, err := r.find(ctx, h.Place, h.User)
	if err != nil {
		return nil, err
	}
	jumps := s.proxyJump
	switch {
	case h.Jump != "":
		jumps, err = r.jumpsTo(ctx, h.Jump, h.JumpUser, s)
	case r.cfg.Jump != "":
		if jumps, err = r.jumpsTo(ctx, r.cfg.Jump, "", s); err != nil {
			err = fmt.Errorf("--jump: %w", err)
		}
	}
	if err != nil {
		return nil, err
	}
	if h.Jump == "" {
		h.JumpUser, h.JumpAuth = "", nil
	}
	jump, err := r.chain(ctx, jumps, []*settings{s}, h)
	if err != nil {
		return nil, err
	}
	return r.target(ctx, cmp.Or(h.ID, s.id()), s, jump, h)
}

// jumpsTo returns the jump hosts in jump that lead to a machine. If the machine is one of them, only the hosts before
// it lead there.
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

// id returns the name of a machine without an identity.
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
	where.user = cmp.Or(where.user, user)
	return r.sshConfig.settings(ctx, where)
}

// chain returns the last of several jump hosts. Each is reached through the one before, and the first by ssh_config.
// path has the hosts behind them, with h first.
func (r *Resolver) chain(ctx context.Context, jumps []string, path []*settings, h Host) (*Target, error) {
	var last *Target
	for i, text := range jumps {
		s, err := r.find(ctx, text, h.JumpUser)
		if err != nil {
			return nil, fmt.Errorf("jump host: %w", err)
		}
		longer := append(slices.Clone(path), s)
		if slices.ContainsFunc(path, func(p *settings) bool { return p.name == s.name && p.same(s) }) {
			return nil, loopError(names(longer))
		}
		if len(longer) > maxHops+1 {
			return nil, fmt.Errorf("more than %d jump hosts on the way: %s", maxHops, strings.Join(names(longer), " -> "))
		}
		if i == 0 {
			if last, err = r.chain(ctx, s.proxyJump, longer, Host{}); err != nil {
				return nil, err
			}
		}
		id := s.user + "@" + s.addr()
		if last != nil {
			id += " via " + last.Name
		}
		if last, err = r.target(ctx, id, s, last, Host{Auth: h.JumpAuth}); err != nil {
			return nil, OfFlag("jump host "+s.name, err)
		}
		path = longer
	}
	return last, nil
}

// same reports whether both are the same login on the same machine.
func (s *settings) same(other *settings) bool {
	return s.addr() == other.addr() && s.user == other.user
}

func names(path []*settings) []string {
	all := make([]string, len(path))
	for i, s := range path {
		all[i] = s.name
	}
	return all
}

func loopError(names []string) error {
	return fmt.Errorf("jump hosts form a loop: %s (set ProxyJump none for a host that is reached directly)",
		strings.Join(names, " -> "))
}

// target adds the login and the verification of the host key to the settings.
func (r *Resolver) target(ctx context.Context, id string, s *settings, jump *Target, h Host) (*Target, error) {
	t := &Target{
		Name: id, Addr: s.addr(), Jump: jump,
		SSH: mux.Config{
			User: s.user, HostKeyAlias: s.hostKeyAlias, MachineID: id, KeepaliveInterval: r.cfg.KeepaliveInterval,
			KeepaliveTimeout: r.cfg.KeepaliveTimeout, SessionLimit: r.cfg.SessionLimit,
		},
	}
	var err error
	if len(h.Auth) > 0 {
		t.SSH.Auth, err = withCertificates(h.Auth, s.certificates)
	} else {
		err = r.setAuth(ctx, s, &t.SSH)
	}
	if err != nil {
		return nil, err
	}
	if h.HostKeys != nil {
		t.SSH.HostKeys = *h.HostKeys
		return t, nil
	}
	if t.SSH.HostKeys, err = r.hostKeys(id, s); err != nil {
		return nil, err
	}
	return t, nil
}

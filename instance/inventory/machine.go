package inventory

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// Machine is an inventory's description of the way to an instance.
type Machine struct {
	ID    string // its identity
	Place string // host or host:port; host may be a name that the Resolver knows
	User  string // empty if not said
	// Auth holds the ways to log in. Empty if not said.
	Auth []login.Auth
	// HostKeys judges its host key. Nil if not said.
	HostKeys *login.HostKeys
	// Jump is the host to go through, [user@]host[:port], or the word none. Empty if not said.
	Jump string
	// JumpUser and JumpAuth are User and Auth of the host that Jump names.
	JumpUser string
	JumpAuth []login.Auth
}

// Resolver knows the way to machines where the inventory does not say it. One goroutine uses it.
type Resolver interface {
	// KeyFile reads a private key.
	KeyFile(ctx context.Context, file string) (login.Auth, error)
	// Resolve returns the address of a machine, how to log in there, and the jump host, nil for a direct connection.
	Resolve(ctx context.Context, m Machine) (addr string, cfg mux.Config, jump *instance.Instance, err error)
}

// resolver returns the fallback's, which is asked for once for each text.
func (r *reader) resolver() (Resolver, error) {
	if r.asked == nil {
		asked, err := r.fallback.Resolver()
		if err != nil {
			return nil, err
		}
		r.asked = asked
	}
	return r.asked, nil
}

// instance makes an entry an instance. Its way may lead through one of ids.
func (r *reader) instance(e entry, ids map[string]entry) (instance.Instance, error) {
	resolver, err := r.resolver()
	if err != nil {
		return instance.Instance{}, r.errorf(e.at, "the instance %s: %v", e.id, err)
	}
	m := Machine{ID: e.id, Place: e.addr, User: e.user}
	if e.key != nil {
		m.Auth = []login.Auth{e.key.auth}
	}
	if len(e.hostKeys) > 0 {
		pinned := login.PinnedHostKeys(e.hostKeys...)
		m.HostKeys = &pinned
	}
	_, byID := ids[e.via]
	switch {
	case !e.viaSaid:
	case byID || e.via == "":
		m.Jump = "none"
	default:
		m.Jump, m.JumpUser = e.via, r.defaults.user
		if r.defaults.key != nil {
			m.JumpAuth = []login.Auth{r.defaults.key.auth}
		}
	}
	addr, cfg, jump, err := resolver.Resolve(r.ctx, m)
	if err != nil {
		return instance.Instance{}, r.errorf(e.at, "the instance %s: %v", e.id, err)
	}
	switch {
	case byID:
		jump = &instance.Instance{ID: e.via}
	case jump != nil && m.JumpAuth != nil:
		jump.Revision = revision(r.defaults.key, nil)
	}
	return instance.Instance{
		ID:       e.id,
		Addr:     addr,
		SSH:      cfg,
		Jump:     jump,
		Capacity: e.builds(r.fallback),
		MaxUses:  e.maxUses,
		Labels:   e.labels,
		Runner:   e.command(r.fallback),
		TempDir:  e.tempDir,
		Revision: revision(e.key, e.hostKeys),
	}, nil
}

func (e entry) builds(f Fallback) int {
	if e.capacity == 0 {
		return max(f.Capacity, 1)
	}
	return e.capacity
}

func (e entry) command(f Fallback) []string {
	if len(e.runner) == 0 {
		return f.Runner
	}
	return e.runner
}

// revision tells keys from others.
func revision(key *keyFile, hostKeys []ssh.PublicKey) string {
	sum := sha256.New()
	if key != nil {
		sum.Write(key.sum[:])
	}
	for _, k := range hostKeys {
		sum.Write(ssh.MarshalAuthorizedKey(k))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

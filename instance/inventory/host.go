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

// Host is an instance's host, as an inventory describes it: the machine to dial, and the way to it.
type Host struct {
	ID    string // its identity
	Place string // host or host:port; the Resolver may know host by another name
	User  string // empty if not given
	// Auth holds the ways to log in. Empty if not given.
	Auth []login.Auth
	// HostKeys is the host-key policy. Nil if not given.
	HostKeys *login.HostKeys
	// Jump is the host to go through, [user@]host[:port], or "none". Empty if not given.
	Jump string
	// JumpUser and JumpAuth are User and Auth of the host that Jump names.
	JumpUser string
	JumpAuth []login.Auth
}

// Resolver fills in the way to hosts where the inventory does not describe it. One goroutine uses it.
type Resolver interface {
	// KeyFile reads a private key.
	KeyFile(ctx context.Context, file string) (login.Auth, error)
	// Resolve returns the address of a host, how to log in there, and the jump host, nil for a direct connection.
	Resolve(ctx context.Context, h Host) (addr string, cfg mux.Config, jump *instance.Instance, err error)
}

// instance converts an entry to an instance. ids are the entries that it may be reached through.
func (r *reader) instance(e entry, ids map[string]entry) instance.Instance {
	h := Host{ID: e.id, Place: e.addr, User: e.user, Auth: e.auth}
	if len(e.hostKeys) > 0 {
		pinned := login.PinnedHostKeys(e.hostKeys...)
		h.HostKeys = &pinned
	}
	_, byID := ids[e.via]
	switch {
	case !e.viaSaid:
	case byID || e.via == "":
		h.Jump = "none"
	default:
		h.Jump, h.JumpUser, h.JumpAuth = e.via, r.defaults.user, r.defaults.auth
	}
	in := instance.Instance{
		ID: e.id, Capacity: e.capacity, MaxUses: e.maxUses, Labels: e.labels, Runner: e.runner,
		Options: e.Options, Health: e.health,
	}
	resolver, err := r.resolver()
	if err == nil {
		in.Addr, in.SSH, in.Jump, err = resolver.Resolve(r.ctx, h)
	}
	if err != nil {
		r.Failf(e.at, "the instance %s: %v", e.id, err)
	}
	in.Revision = revision(in.SSH.Auth, e.hostKeys)
	for j := in.Jump; j != nil && j.Revision == ""; j = j.Jump {
		j.Revision = revision(j.SSH.Auth, nil)
	}
	if byID {
		in.Jump = &instance.Instance{ID: e.via}
	}
	return in
}

// revision returns a text that differs for different keys. The keys of an agent or a command are unknown before a
// login.
func revision(auths []login.Auth, hostKeys []ssh.PublicKey) string {
	sum := sha256.New()
	for _, a := range auths {
		if key := a.PublicKey(); key != nil {
			sum.Write(key.Marshal())
		}
	}
	for _, key := range hostKeys {
		sum.Write(key.Marshal())
	}
	return hex.EncodeToString(sum.Sum(nil))
}

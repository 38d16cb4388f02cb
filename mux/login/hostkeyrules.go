package login

import (
	"context"
	"fmt"
	"net"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/firstuse"
)

// PinnedHostKeys accepts exactly the given keys, at any address. Without keys it passes every key to the next rule.
func PinnedHostKeys(keys ...ssh.PublicKey) HostKeys {
	known := knowledge{policy: "pinned", check: func(_ context.Context, _ net.Addr, got ssh.PublicKey) error {
		if len(keys) == 0 {
			return notKnown("no key is pinned; the server's is " + describe(got))
		}
		for _, want := range keys {
			if sameKey(want, plainKey(got)) {
				return nil
			}
		}
		var pins []string
		for _, want := range keys[:min(len(keys), maxShown)] {
			pins = append(pins, describe(want))
		}
		return fmt.Errorf("the server shows %s, but %s is pinned", describe(got), strings.Join(pins, " or "))
	}}
	for _, k := range keys {
		known.types = append(known.types, k.Type())
	}
	return policyOf(func(context.Context, server) (knowledge, error) { return known, nil })
}

// InsecurePolicy is the policy that a mux.Trace's HostKey hook gets for a key that only InsecureHostKeys accepted.
const InsecurePolicy = "insecure: any key is accepted"

// InsecureHostKeys accepts any key of any server: anybody on the network can pose as the server, and read and change
// everything. It is for machines without an identity that could be verified.
func InsecureHostKeys() HostKeys {
	known := knowledge{policy: InsecurePolicy, check: func(context.Context, net.Addr, ssh.PublicKey) error { return nil }}
	return policyOf(func(context.Context, server) (knowledge, error) { return known, nil })
}

// FirstUse is trust on first use: it accepts any key from a machine without a known key, and from then on only that
// key. A machine is known by its mux.Config.MachineID, never by its address. A key is remembered after the first
// login with it, until [HostKeys.Forget] or until the machine was not reached for 90 days.
//
// The file is created with the first key, if it does not exist. It has the form of known_hosts, with identities in
// place of names; any number of processes may use it at the same time.
func FirstUse(file string) (HostKeys, error) {
	store, err := firstuse.Open(file)
	if err != nil {
		return HostKeys{}, err
	}
	lookup := func(_ context.Context, s server) (knowledge, error) { return firstUse(store, s) }
	return HostKeys{rules: []hostKeyRule{{lookup: lookup, forget: store.Forget}}}, nil
}

// firstUse returns the knowledge of FirstUse about a server.
func firstUse(store *firstuse.Store, s server) (knowledge, error) {
	kept, err := store.Key(s.machine)
	if err != nil {
		return knowledge{}, err
	}
	changed := func(kept, got ssh.PublicKey) error {
		return fmt.Errorf("HOST KEY CHANGED: machine %s at %s shows %s, but showed %s when it was first reached: "+
			"somebody may be in between; if the machine was rebuilt give it a new identity, or remove its line from %s",
			s.machine, s.addr, describe(got), describe(kept), store.Path())
	}
	known := knowledge{
		policy: "first-use: the first key of this machine, to be kept in " + store.Path(),
		check: func(_ context.Context, _ net.Addr, key ssh.PublicKey) error {
			if kept == nil || sameKey(kept, plainKey(key)) {
				return nil
			}
			return changed(kept, key)
		},
		learn: func(ctx context.Context, key ssh.PublicKey) error {
			now, err := store.Keep(ctx, s.machine, plainKey(key))
			if err == nil && !sameKey(now, plainKey(key)) {
				err = changed(now, key) // another process was first
			}
			return err
		},
	}
	if kept != nil {
		known.policy = "first-use: the key that is kept in " + store.Path()
		known.types = []string{kept.Type()}
	}
	return known, nil
}

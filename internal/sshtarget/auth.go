package sshtarget

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/percent"
	"github.com/stepmux/stepmux/internal/subprocess"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
)

// Limits of the operator's commands. They ask other services, and no human.
var (
	passphraseLimit = subprocess.Limit{Time: 20 * time.Second, Bytes: 4 << 10}
	identityLimit   = subprocess.Limit{Time: 20 * time.Second, Bytes: 64 << 10}
)

// maxPublicKey bounds a .pub file.
const maxPublicKey = 64 << 10

// setAuth sets the ways to log in to a machine.
func (r *Resolver) setAuth(ctx context.Context, s *settings, cfg *mux.Config) error {
	var err error
	if len(r.cfg.IdentityCommand) > 0 {
		if cfg.Credentials, err = r.credentials(s); err != nil {
			return err
		}
	}
	switch {
	case len(r.cfg.Identities) > 0:
		for _, file := range r.cfg.Identities {
			key, err := r.KeyFile(ctx, file)
			if err != nil {
				return OfFlag("--identity", err)
			}
			cfg.Auth = append(cfg.Auth, key)
		}
	case len(r.cfg.IdentityCommand) > 0: // no other way
	case s.identities != nil || s.identitiesOnly:
		cfg.Auth, err = r.configuredAuth(ctx, s)
	default:
		cfg.Auth, err = r.defaultAuth(ctx, s)
	}
	if err != nil {
		return err
	}
	if cfg.Auth, err = withCertificates(cfg.Auth, s.certificates); err != nil {
		return err
	}
	if len(cfg.Auth) == 0 && cfg.Credentials == nil {
		return errors.New("no way to log in: name a private key with --identity, or start an ssh-agent")
	}
	return nil
}

// ownFileError is an error in a file that ssh reads, too, and that no flag names.
type ownFileError struct{ error }

// Unwrap returns the cause.
func (e ownFileError) Unwrap() error { return e.error }

// OfFlag returns err as an error about the value of a flag, unless err is about another flag or a file already.
func OfFlag(flag string, err error) error {
	if _, ownFile := errors.AsType[ownFileError](err); ownFile || strings.HasPrefix(err.Error(), "--") {
		return err
	}
	return fmt.Errorf("%s: %w", flag, err)
}

// KeyFile reads a private key, with its passphrase if it has one and the certificate beside it if there is one. Each
// file is read once. ctx bounds the command that prints the passphrase.
func (r *Resolver) KeyFile(ctx context.Context, file string) (login.Auth, error) {
	if key, ok := r.keys[file]; ok {
		return key, nil
	}
	key, err := login.KeyFile(file)
	missing := (*ssh.PassphraseMissingError)(nil)
	if errors.As(err, &missing) && len(r.cfg.PassphraseCommand) > 0 {
		var secret []byte
		if secret, err = Passphrase(ctx, r.cfg.PassphraseCommand, file); err == nil {
			key, err = login.LockedKeyFile(file, secret)
		}
	}
	if err != nil {
		return login.Auth{}, err
	}
	if cert := file + "-cert.pub"; exists(cert) {
		if key, err = key.WithCertificate(cert); err != nil {
			return login.Auth{}, err
		}
	}
	r.keys[file] = key
	return key, nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// Passphrase returns the first line of the output of command, the operator's: the passphrase of a key.
func Passphrase(ctx context.Context, command []string, file string) ([]byte, error) {
	words, err := percent.ExpandAll(command[1:], map[byte]string{'f': file})
	if err != nil {
		return nil, fmt.Errorf("--passphrase-command: %w", err)
	}
	out, err := subprocess.Output(ctx, append([]string{command[0]}, words...), passphraseLimit)
	if err != nil {
		return nil, fmt.Errorf("--passphrase-command: get the passphrase of %s: %w", file, err)
	}
	line, _, _ := bytes.Cut(out, []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r")), nil
}

// credentials returns a function that gets an expiring key from the operator's command.
func (r *Resolver) credentials(s *settings) (func(context.Context) ([]login.Auth, error), error) {
	command := r.cfg.IdentityCommand
	words, err := percent.ExpandAll(command[1:], map[byte]string{
		'h': s.host, 'p': s.port, 'r': s.user, 'n': s.name, 'k': cmp.Or(s.hostKeyAlias, s.name),
	})
	if err != nil {
		return nil, fmt.Errorf("--identity-command: %w", err)
	}
	argv := append([]string{command[0]}, words...)
	return func(ctx context.Context) ([]login.Auth, error) {
		out, err := subprocess.Output(ctx, argv, identityLimit)
		if err != nil {
			return nil, err
		}
		id, err := login.ParseIdentity(argv[0], out)
		return []login.Auth{id}, err
	}, nil
}

// defaultAuth returns the keys that ssh tries without configuration: the agent's and those in the default files.
func (r *Resolver) defaultAuth(ctx context.Context, s *settings) ([]login.Auth, error) {
	var all []login.Auth
	if s.agent != "" {
		agent, err := login.Agent(s.agent)
		if err != nil {
			return nil, err
		}
		all = append(all, agent)
	}
	for _, file := range defaultKeyFiles() {
		// A file that is missing or cannot be read is no error, because it was not configured.
		if key, err := r.KeyFile(ctx, file); err == nil {
			all = append(all, key)
		}
	}
	return all, nil
}

// defaultKeyFiles returns the files in which ssh looks for keys without configuration.
func defaultKeyFiles() []string {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil
	}
	dir := filepath.Join(home, ".ssh")
	return []string{filepath.Join(dir, "id_ed25519"), filepath.Join(dir, "id_ecdsa"), filepath.Join(dir, "id_rsa")}
}

// configuredAuth returns the keys that ssh_config names. If a key file is locked or has only the public key, the agent
// must have the key. Unless IdentitiesOnly is set, all other keys of the agent follow.
func (r *Resolver) configuredAuth(ctx context.Context, s *settings) ([]login.Auth, error) {
	var all []login.Auth
	var byAgent []ssh.PublicKey
	var problems error
	files := s.identities
	if files == nil {
		files = defaultKeyFiles()
	}
	for _, file := range files {
		key, err := r.KeyFile(ctx, file)
		if err == nil {
			all = append(all, key)
			continue
		}
		public, pubErr := publicKey(strings.TrimSuffix(file, ".pub") + ".pub")
		missing := (*ssh.PassphraseMissingError)(nil)
		switch {
		case s.agent != "" && pubErr == nil:
			byAgent = append(byAgent, public)
		case errors.Is(err, os.ErrNotExist): // ssh ignores it, too; it is an error if no other key is left
			problems = errors.Join(problems, err)
		case errors.As(err, &missing) && s.agent != "" && !s.identitiesOnly: // the agent may have it
		default:
			return nil, fmt.Errorf("IdentityFile: %w", err)
		}
	}
	if s.agent != "" && (len(byAgent) > 0 || !s.identitiesOnly) {
		if !s.identitiesOnly {
			byAgent = nil // nil means all
		}
		agent, err := login.Agent(s.agent, byAgent...)
		if err != nil {
			return nil, err
		}
		all = append(all, agent)
	}
	if len(all) == 0 {
		return nil, errors.Join(errors.New("no way to log in: no IdentityFile can be used; "+
			"name a private key with --identity, or start an ssh-agent"), problems)
	}
	return all, nil
}

// publicKey reads a public key or a certificate.
func publicKey(file string) (ssh.PublicKey, error) {
	text, err := boundedfile.Read(file, maxPublicKey)
	if err != nil {
		return nil, err
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey(text)
	return key, err
}

// withCertificates adds the certificates that CertificateFile names to their keys.
func withCertificates(ways []login.Auth, files []string) ([]login.Auth, error) {
	ways = slices.Clone(ways)
	for _, file := range files {
		if !exists(file) {
			continue // ssh skips it, too
		}
		public, err := publicKey(file)
		if err != nil {
			return nil, fmt.Errorf("CertificateFile %s: %w", file, err)
		}
		for i, way := range ways {
			if certifies(public, way.PublicKey()) {
				if ways[i], err = way.WithCertificate(file); err != nil {
					return nil, fmt.Errorf("CertificateFile: %w", err)
				}
			}
		}
	}
	return ways, nil
}

// certifies reports whether a certificate may be for a key. For an agent's keys, which are nil because they are not
// known yet, it returns true.
func certifies(cert, key ssh.PublicKey) bool {
	c, ok := cert.(*ssh.Certificate)
	return !ok || key == nil || bytes.Equal(c.Key.Marshal(), key.Marshal())
}

package rawssh

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
)

// kexInit is the message of that name (RFC 4253, section 7.1).
type kexInit struct {
	Cookie           [16]byte `sshtype:"20"`
	Kex              []string
	HostKeys         []string
	CiphersIn        []string
	CiphersOut       []string
	MACsIn           []string
	MACsOut          []string
	CompressionsIn   []string
	CompressionsOut  []string
	LanguagesIn      []string
	LanguagesOut     []string
	FirstKexFollows  bool
	ReservedForLater uint32
}

const strictKex = "kex-strict-s-v00@openssh.com"

// Handshake serves the client until it has logged in. It accepts any login.
func (c *Conn) Handshake() error {
	if err := c.Versions("SSH-2.0-OpenSSH_rawssh"); err != nil {
		return err
	}
	if err := c.Exchange(); err != nil {
		return err
	}
	return c.Login()
}

// Versions exchanges the version lines. It adds the line break to version.
func (c *Conn) Versions(version string) error {
	c.serverVersion = version
	if err := c.WriteRaw([]byte(version + "\r\n")); err != nil {
		return err
	}
	line, err := c.in.ReadString('\n')
	c.clientVersion = strings.TrimRight(line, "\r\n")
	return err
}

// ClientKex returns the key exchanges that the client has offered. It is valid after Exchange.
func (c *Conn) ClientKex() []string {
	var init kexInit
	if err := ssh.Unmarshal(c.clientKex, &init); err != nil {
		return nil
	}
	return init.Kex
}

// Exchange exchanges keys, for the first time or again. The next message of the client must be its KEXINIT.
func (c *Conn) Exchange() error { return c.ExchangeAfter() }

// ExchangeAfter is Exchange with one more message after the server's offer.
func (c *Conn) ExchangeAfter(messages ...[]byte) error {
	init, err := c.SendKexInit()
	if err != nil {
		return err
	}
	for _, m := range messages {
		if err := c.Write(m); err != nil {
			return err
		}
	}
	if c.clientKex, err = c.await(KexInit); err != nil {
		return err
	}
	exchange, err := c.await(30)
	if err != nil {
		return err
	}
	var public struct {
		Key []byte `sshtype:"30"`
	}
	if err := ssh.Unmarshal(exchange, &public); err != nil {
		return err
	}
	return c.answerExchange(init, public.Key)
}

// SendKexInit offers algorithms and returns the message.
func (c *Conn) SendKexInit() ([]byte, error) {
	none, gcm, mac := []string{"none"}, []string{"aes128-gcm@openssh.com"}, []string{"hmac-sha2-256"}
	offer := kexInit{
		Kex: []string{"curve25519-sha256"}, HostKeys: []string{ssh.KeyAlgoED25519},
		CiphersIn: gcm, CiphersOut: gcm, MACsIn: mac, MACsOut: mac, CompressionsIn: none, CompressionsOut: none,
	}
	if !c.NoStrictKex {
		offer.Kex = append(offer.Kex, strictKex)
	}
	_, _ = rand.Read(offer.Cookie[:]) // never fails
	init := ssh.Marshal(offer)
	return init, c.Write(init)
}

// answerExchange is the server's side of RFC 8731.
func (c *Conn) answerExchange(init, client []byte) error {
	theirs, err := ecdh.X25519().NewPublicKey(client)
	if err != nil {
		return err
	}
	ours, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	shared, err := ours.ECDH(theirs)
	if err != nil {
		return err
	}
	hostKey, public := c.key.PublicKey().Marshal(), ours.PublicKey().Bytes()
	secret := ssh.Marshal(struct{ K *big.Int }{new(big.Int).SetBytes(shared)})
	sum := sha256.Sum256(slices.Concat(ssh.Marshal(struct {
		ClientVersion, ServerVersion string
		ClientKex, ServerKex         []byte
		HostKey, Client, Server      []byte
	}{c.clientVersion, c.serverVersion, c.clientKex, init, hostKey, client, public}), secret))
	signature, err := c.key.Sign(rand.Reader, sum[:])
	if err != nil {
		return err
	}
	if c.sessionID == nil {
		c.sessionID = sum[:]
	}
	reply := ssh.Marshal(struct {
		HostKey   []byte `sshtype:"31"`
		Public    []byte
		Signature []byte
	}{hostKey, public, ssh.Marshal(signature)})
	if err := c.Write(reply); err != nil {
		return err
	}
	if err := c.Write([]byte{NewKeys}); err != nil {
		return err
	}
	sealer, err := c.sealing(secret, sum[:], 'B', 'D')
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.sealer = sealer
	c.mu.Unlock()
	if _, err := c.await(NewKeys); err != nil {
		return err
	}
	c.opener, err = c.sealing(secret, sum[:], 'A', 'C')
	return err
}

// sealing derives keys (RFC 4253, section 7.2).
func (c *Conn) sealing(secret, hash []byte, iv, key byte) (*sealing, error) {
	derive := func(letter byte) []byte {
		sum := sha256.Sum256(slices.Concat(secret, hash, []byte{letter}, c.sessionID))
		return sum[:]
	}
	block, err := aes.NewCipher(derive(key)[:16])
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	s := &sealing{aead: aead}
	copy(s.nonce[:], derive(iv))
	return s, nil
}

// Login accepts any login of the client.
func (c *Conn) Login() error {
	if err := c.AcceptService(); err != nil {
		return err
	}
	if _, err := c.await(AuthRequest); err != nil {
		return err
	}
	return c.Write([]byte{AuthSuccess})
}

// AcceptService answers the service request with which the login begins.
func (c *Conn) AcceptService() error {
	if _, err := c.await(ServiceRequest); err != nil {
		return err
	}
	return c.Write(ssh.Marshal(struct {
		Service string `sshtype:"6"`
	}{"ssh-userauth"}))
}

// await returns the client's next message. A message with another number is an error.
func (c *Conn) await(number byte) ([]byte, error) {
	message, err := c.Read()
	switch {
	case err != nil:
		return nil, err
	case len(message) == 0:
		return nil, errors.New("rawssh: an empty message")
	case message[0] != number:
		return nil, fmt.Errorf("rawssh: message %d instead of %d", message[0], number)
	}
	return message, nil
}

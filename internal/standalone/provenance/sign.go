package provenance

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/secure-systems-lab/go-securesystemslib/signerverifier"
	"golang.org/x/crypto/ssh"
)

// payloadType is the type of statements and links in an envelope.
const payloadType = "application/vnd.in-toto+json"

// Key is an ed25519 or ECDSA key. A private key signs statements; both kinds verify signatures.
type Key struct {
	// ID is the name of the key as in-toto computes it: a SHA-256 of the public key, in hexadecimal.
	ID string

	key dsse.SignerVerifier
}

// ParsePrivateKey reads a private key in OpenSSH or PEM form. If the key needs a passphrase and passphrase is nil, the
// error wraps a [*ssh.PassphraseMissingError].
func ParsePrivateKey(text, passphrase []byte) (*Key, error) {
	private, err := ssh.ParseRawPrivateKey(text)
	if missing := (*ssh.PassphraseMissingError)(nil); errors.As(err, &missing) && len(passphrase) > 0 {
		private, err = ssh.ParseRawPrivateKeyWithPassphrase(text, passphrase)
	}
	if err != nil {
		return nil, err
	}
	switch k := private.(type) {
	case *ed25519.PrivateKey:
		return newKey("PRIVATE KEY", *k, x509.MarshalPKCS8PrivateKey)
	case ed25519.PrivateKey, *ecdsa.PrivateKey:
		return newKey("PRIVATE KEY", k, x509.MarshalPKCS8PrivateKey)
	default:
		return nil, errors.New("the key is neither an ed25519 nor an ECDSA key")
	}
}

// ParsePublicKey reads a public key in PEM form, or in that of OpenSSH's .pub files.
func ParsePublicKey(text []byte) (*Key, error) {
	var public any
	if block, _ := pem.Decode(text); block != nil {
		var err error
		if public, err = x509.ParsePKIXPublicKey(block.Bytes); err != nil {
			return nil, errors.New("the file is not a public key in PEM form")
		}
	} else if key, _, _, _, err := ssh.ParseAuthorizedKey(text); err != nil {
		return nil, errors.New("the file is not a public key in PEM form, nor a .pub file of OpenSSH")
	} else if key, ok := key.(ssh.CryptoPublicKey); ok {
		public = key.CryptoPublicKey()
	}
	switch public.(type) {
	case ed25519.PublicKey, *ecdsa.PublicKey:
		return newKey("PUBLIC KEY", public, x509.MarshalPKIXPublicKey)
	default:
		return nil, errors.New("the key is neither an ed25519 nor an ECDSA key")
	}
}

func newKey(kind string, key any, marshal func(any) ([]byte, error)) (*Key, error) {
	der, err := marshal(key)
	if err != nil {
		return nil, err
	}
	k, err := signerverifier.LoadKey(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	if err != nil {
		return nil, err
	}
	var both dsse.SignerVerifier
	if k.KeyType == signerverifier.ED25519KeyType {
		both, err = signerverifier.NewED25519SignerVerifierFromSSLibKey(k)
	} else {
		both, err = signerverifier.NewECDSASignerVerifierFromSSLibKey(k)
	}
	return &Key{k.KeyID, both}, err
}

// Sign returns a DSSE envelope with statement, which is a statement or a link. A newline follows it.
func (k *Key) Sign(statement []byte) ([]byte, error) {
	signer, err := dsse.NewEnvelopeSigner(k.key)
	if err != nil {
		return nil, fmt.Errorf("sign provenance: %w", err)
	}
	envelope, err := signer.SignPayload(context.Background(), payloadType, bytes.TrimSuffix(statement, []byte("\n")))
	if err != nil {
		return nil, fmt.Errorf("sign provenance: %w", err)
	}
	data, err := json.Marshal(envelope)
	return append(data, '\n'), err
}

// open returns the payload of a DSSE envelope. The key must have signed it.
func (k *Key) open(envelope []byte) ([]byte, error) {
	var e dsse.Envelope
	if err := json.Unmarshal(envelope, &e); err != nil || e.PayloadType != payloadType {
		return nil, errors.New("the file is not a DSSE envelope with a statement of in-toto")
	}
	verifier, err := dsse.NewEnvelopeVerifier(k.key)
	if err != nil {
		return nil, err
	}
	_, payload, err := verifier.VerifyAndDecode(context.Background(), &e)
	if err != nil {
		return nil, &SignatureError{k.ID}
	}
	return payload, nil
}

// SignatureError says that an envelope has no valid signature of a key.
type SignatureError struct{ KeyID string }

func (e *SignatureError) Error() string {
	return "the file has no valid signature of the key " + e.KeyID + ": it was changed, or another key signed it"
}

package provenance

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/in-toto/in-toto-golang/in_toto"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

// newKeys returns a private and a public key of a kind in PEM form.
func newKeys(t testing.TB, kind string) (private, public []byte) {
	t.Helper()
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	var key any = edwards
	var half any = edwards.Public()
	if kind == "ecdsa" {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		key, half = k, k.Public()
	}
	data, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	private = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: data})
	data, err = x509.MarshalPKIXPublicKey(half)
	require.NoError(t, err)
	return private, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: data})
}

func newSigner(t testing.TB, kind string) (signer, verifier *Key) {
	t.Helper()
	private, public := newKeys(t, kind)
	signer, err := ParsePrivateKey(private, nil)
	require.NoError(t, err)
	verifier, err = ParsePublicKey(public)
	require.NoError(t, err)
	require.Equal(t, signer.ID, verifier.ID)
	return signer, verifier
}

// in-toto's own verifier accepts the links of a job that the key of its layout has signed, and no others.
func TestVerifierOfInTotoAcceptsSignedLinks(t *testing.T) {
	for _, kind := range []string{"ed25519", "ecdsa"} {
		t.Run(kind, func(t *testing.T) {
			private, public := newKeys(t, kind)
			signer, err := ParsePrivateKey(private, nil)
			require.NoError(t, err)
			var of in_toto.Key
			require.NoError(t, of.LoadKeyReaderDefaults(strings.NewReader(string(public))))
			require.Equal(t, of.KeyID, signer.ID)
			owner := writeKey(t, "ed25519")

			links, err := Links(sample(t), signer)
			require.NoError(t, err)
			require.NotEmpty(t, links)
			dir := t.TempDir()
			layout := in_toto.Layout{
				Type: "layout", Keys: map[string]in_toto.Key{of.KeyID: of}, Inspect: []in_toto.Inspection{},
				Expires: time.Now().Add(time.Hour).UTC().Format(in_toto.ISO8601DateSchema),
			}
			for _, l := range links {
				require.NoError(t, os.WriteFile(filepath.Join(dir, l.File), l.Data, 0o600))
				name := strings.TrimSuffix(l.File, fmt.Sprintf(".%.8s.link", signer.ID))
				layout.Steps = append(layout.Steps, in_toto.Step{
					Type: "step", PubKeys: []string{of.KeyID}, Threshold: 1, ExpectedCommand: []string{"bash", "[MASKED]"},
					SupplyChainItem: in_toto.SupplyChainItem{
						Name: name, ExpectedMaterials: [][]string{{"ALLOW", "*"}},
						ExpectedProducts: [][]string{{"CREATE", "outputs"}, {"DISALLOW", "*"}},
					},
				})
			}
			verify := func() error {
				var env in_toto.Envelope
				require.NoError(t, env.SetPayload(layout))
				require.NoError(t, env.Sign(owner))
				_, err := in_toto.InTotoVerify(&env, map[string]in_toto.Key{owner.KeyID: owner}, dir, "", nil, nil, false)
				return err
			}
			require.NoError(t, verify())

			another, _ := newSigner(t, kind)
			forged, err := Links(sample(t), another)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, links[0].File), forged[0].Data, 0o600))
			require.Error(t, verify(), "a link that another key has signed")
		})
	}
}

// writeKey returns a new private key as in-toto's library reads it.
func writeKey(t testing.TB, kind string) (key in_toto.Key) {
	t.Helper()
	private, _ := newKeys(t, kind)
	require.NoError(t, key.LoadKeyReaderDefaults(strings.NewReader(string(private))))
	return key
}

func TestSignedStatementListsDifferences(t *testing.T) {
	tr, dir := sample(t), t.TempDir()
	data, err := tr.Encode()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "app"), []byte("app"), 0o600))
	subjects, err := Subjects(dir, []string{"app"})
	require.NoError(t, err)
	cfg := Config{
		Builder: "https://ci.example.com/fleet", Subjects: subjects, TraceName: "trace.json",
		TraceDigest: fmt.Sprintf("%x", sha256.Sum256(data)),
	}
	statement, err := Statement(tr, cfg)
	require.NoError(t, err)
	signer, verifier := newSigner(t, "ed25519")
	envelope, err := signer.Sign(statement)
	require.NoError(t, err)
	require.NotContains(t, string(envelope), "PRIVATE")

	s, err := verifier.Verify(envelope, dir, data)
	require.NoError(t, err)
	require.True(t, s.Same(), s)
	require.Equal(t, verifier.ID, s.KeyID)
	require.Equal(t, SLSA, s.Type)
	require.Equal(t, cfg.Builder, s.Builder)
	require.Equal(t, []SignedFile{{"app", subjects[0].SHA256, subjects[0].SHA256}}, s.Subjects)
	require.Equal(t, &SignedFile{"trace.json", cfg.TraceDigest, cfg.TraceDigest}, s.Trace)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "app"), []byte("changed"), 0o600))
	s, err = verifier.Verify(envelope, dir, nil)
	require.NoError(t, err)
	require.False(t, s.Same())
	require.NotEqual(t, s.Subjects[0].Signed, s.Subjects[0].Is)
	require.NoError(t, os.Remove(filepath.Join(dir, "app")))
	s, err = verifier.Verify(envelope, dir, nil)
	require.NoError(t, err)
	require.False(t, s.Same())
	require.Empty(t, s.Subjects[0].Is)

	tr.Identity.Job.Inputs, tr.Volatile.TraceID = nil, "another"
	other, err := tr.Encode()
	require.NoError(t, err)
	s, err = verifier.Verify(envelope, dir, other)
	require.NoError(t, err)
	require.Contains(t, strings.Join(s.Differences, "\n"), `/predicate/runDetails/metadata/invocationId: signed `)
	require.Contains(t, strings.Join(s.Differences, "\n"), `/predicate/buildDefinition/externalParameters/inputs/`)

	links, err := Links(tr, signer)
	require.NoError(t, err)
	s, err = verifier.Verify(links[0].Data, dir, other)
	require.NoError(t, err)
	require.True(t, s.Same(), s)
	require.Equal(t, "link", s.Type)
	require.Equal(t, "local", s.Name)
	tr.Identity.Steps[0].Exec.ExitCode = new(3)
	tr.Identity.Steps[0].Exec.Argv[0].Value = "zsh"
	other, err = tr.Encode()
	require.NoError(t, err)
	s, err = verifier.Verify(links[0].Data, dir, other)
	require.NoError(t, err)
	require.Equal(t, []string{
		`/byproducts/exit_code: signed 0, and the trace has 3`, `/byproducts/return-value: signed 0, and the trace has 3`,
		`/command: signed ["bash","[MASKED]"], and the trace has ["zsh","[MASKED]"]`,
	}, s.Differences)
}

func TestOnlyTheKeysOwnEnvelopesAreVerified(t *testing.T) {
	signer, verifier := newSigner(t, "ecdsa")
	_, stranger := newSigner(t, "ecdsa")
	envelope, err := signer.Sign([]byte(`{"_type":"link","name":"a"}` + "\n"))
	require.NoError(t, err)
	s, err := verifier.Verify(envelope, t.TempDir(), nil)
	require.NoError(t, err)
	require.Equal(t, "a", s.Name)
	wrong := (*SignatureError)(nil)
	_, err = stranger.Verify(envelope, t.TempDir(), nil)
	require.ErrorAs(t, err, &wrong)
	changed := strings.Replace(string(envelope), `"payload":"ey`, `"payload":"eX`, 1)
	_, err = verifier.Verify([]byte(changed), t.TempDir(), nil)
	require.ErrorAs(t, err, &wrong)
	for _, text := range []string{"", "{}", "[]", `{"payloadType":"text/plain","payload":"","signatures":[]}`, "\x00"} {
		_, err = verifier.Verify([]byte(text), t.TempDir(), nil)
		require.ErrorContains(t, err, "not a DSSE envelope")
	}
	for _, payload := range []string{"", "1", "{}", `{"_type":"https://in-toto.io/Statement/v1","predicateType":"x"}`} {
		envelope, err := signer.Sign([]byte(payload))
		require.NoError(t, err)
		_, err = verifier.Verify(envelope, t.TempDir(), nil)
		require.Error(t, err, payload)
		require.NotErrorAs(t, err, &wrong)
	}
}

func TestKeysAreReadInTheFormsThatTheyAreKeptIn(t *testing.T) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	public, err := ssh.NewPublicKey(private.Public())
	require.NoError(t, err)
	verifier, err := ParsePublicKey(append(ssh.MarshalAuthorizedKey(public), '\n'))
	require.NoError(t, err)
	for _, passphrase := range []string{"", "open sesame"} {
		block, err := ssh.MarshalPrivateKey(private, "")
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), "key")
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
		if passphrase != "" { // of one round: the usual 16 take seconds under the race detector
			out, err := exec.Command("ssh-keygen", "-q", "-p", "-a", "1", "-N", passphrase, "-f", file).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		signer, err := ParsePrivateKey(text, []byte(passphrase))
		require.NoError(t, err)
		require.Equal(t, verifier.ID, signer.ID)
		if passphrase == "" {
			continue
		}
		missing := (*ssh.PassphraseMissingError)(nil)
		_, err = ParsePrivateKey(text, nil)
		require.ErrorAs(t, err, &missing)
		_, err = ParsePrivateKey(text, []byte("wrong"))
		require.Error(t, err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(key, "")
	require.NoError(t, err)
	_, err = ParsePrivateKey(pem.EncodeToMemory(block), nil)
	require.ErrorContains(t, err, "neither an ed25519 nor an ECDSA key")
	for _, text := range []string{"", "key", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"} {
		_, err = ParsePublicKey([]byte(text))
		require.Error(t, err)
		_, err = ParsePrivateKey([]byte(text), nil)
		require.Error(t, err)
	}
}

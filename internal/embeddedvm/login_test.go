package embeddedvm_test

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/embeddedvm"
	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// forged is a key that shows one public key and signs with another, or not at all.
type forged struct {
	shown ssh.PublicKey
	with  ssh.Signer
}

func (f forged) PublicKey() ssh.PublicKey { return f.shown }

func (f forged) Sign(r io.Reader, data []byte) (*ssh.Signature, error) {
	if f.with == nil {
		return nil, errors.New("it is not mine")
	}
	return f.with.Sign(r, data)
}

//stepmux:faults vulnerabilities | A key that was only offered counts as a login (CVE-2024-45337) | the embedded VM only
//stepmux:more asks whether an offered key is authorized, and remembers nothing
func TestAKeyThatIsOnlyShownIsNoLogin(t *testing.T) {
	// A client can ask about keys that it does not have (CVE-2024-45337).
	authorized, _ := sshtest.NewKey(t)
	stranger, _ := sshtest.NewKey(t)
	vm, err := embeddedvm.Start(embeddedvm.Config{AuthorizedKeys: []ssh.PublicKey{authorized.PublicKey()}})
	require.NoError(t, err)
	t.Cleanup(func() { vm.Close() })
	dial := func(keys ...ssh.Signer) error {
		c, err := ssh.Dial("tcp", vm.Addr(), &ssh.ClientConfig{
			User: "any", Auth: []ssh.AuthMethod{ssh.PublicKeys(keys...)}, HostKeyCallback: ssh.FixedHostKey(vm.HostKey()),
		})
		if err == nil {
			c.Close()
		}
		return err
	}
	require.Error(t, dial(forged{authorized.PublicKey(), stranger}))
	require.Error(t, dial(forged{authorized.PublicKey(), stranger}, stranger))
	require.Error(t, dial(stranger, forged{authorized.PublicKey(), nil}))
	require.NoError(t, dial(stranger, authorized))
}

package manager_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// java stands for the program of that name: it tells its version, and is an agent that answers each byte.
const java = `#!/bin/sh
case $1 in
-version) echo 'openjdk version "21.0.2"' >&2 ;;
-jar) test "$(head -c 4 "$2")" = "PK12" && exec cat ;;
*) exit 1 ;;
esac
`

// What Jenkins does to start an agent by SSH, all in one login: it asks java for its version, uploads the agent by
// SFTP, and starts it, with a binary protocol on its standard streams that lasts as long as the agent.
func TestAnAgentAsThatOfJenkinsWorksThroughTheFrontDoor(t *testing.T) {
	t.Parallel()
	s := newFleetOn(t, sshtest.OpenSSH(t)).serveSSH(t, false)
	program, jar := filepath.Join(s.dir, "java"), filepath.Join(s.dir, "remoting.jar")
	require.NoError(t, os.WriteFile(program, []byte(java), 0o755)) // a program
	client := s.dial("any")
	start := func() *ssh.Session {
		session, err := client.NewSession()
		require.NoError(t, err)
		return session
	}
	asked := start()
	var version bytes.Buffer
	asked.Stderr = &version
	require.NoError(t, asked.Run(program+" -version"))
	require.Equal(t, "openjdk version \"21.0.2\"\n", version.String())

	content := append([]byte("PK12"), bytes.Repeat([]byte("\x00\xff\r\n"), 50_000)...)
	upload(t, start(), jar, content)
	uploaded, err := os.ReadFile(jar)
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, uploaded))

	agent := start()
	in, err := agent.StdinPipe()
	require.NoError(t, err)
	out, err := agent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, agent.Start("cd '"+s.dir+"' && "+program+" -jar "+jar+" -workDir '"+s.dir+"'"))
	for range 3 { // requests and answers, with other work beside them
		go func() { _, _ = in.Write(content) }() // the answer tells
		answer := make([]byte, len(content))
		_, err = io.ReadFull(out, answer)
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, answer))
		require.NoError(t, start().Run("true"))
	}
	require.Equal(t, 1, s.slots())
	require.NoError(t, in.Close())
	require.NoError(t, agent.Wait())
	require.NoError(t, client.Close())
	s.free()
}

// upload writes a file by the protocol of SFTP, version 3 (draft-ietf-secsh-filexfer-02).
func upload(t *testing.T, session *ssh.Session, file string, content []byte) {
	t.Helper()
	in, err := session.StdinPipe()
	require.NoError(t, err)
	out, err := session.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, session.RequestSubsystem("sftp"))
	call := func(message any) []byte {
		packet := ssh.Marshal(message)
		_, err := in.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(packet))), packet...)) // small
		require.NoError(t, err)
		size := make([]byte, 4)
		_, err = io.ReadFull(out, size)
		require.NoError(t, err)
		answer := make([]byte, binary.BigEndian.Uint32(size))
		_, err = io.ReadFull(out, answer)
		require.NoError(t, err)
		return answer
	}
	answer := call(struct {
		Version uint32 `sshtype:"1"`
	}{3})
	require.Equal(t, "\x02\x00\x00\x00\x03", string(answer[:5]))
	answer = call(struct {
		ID    uint32 `sshtype:"3"`
		Path  string
		Flags uint32
		Attrs uint32
	}{1, file, 2 | 8, 0}) // to write, and made
	require.Equal(t, "\x66\x00\x00\x00\x01", string(answer[:5]), "%q", answer)
	handle := string(answer[9:])
	ok := func(answer []byte) {
		require.Equal(t, "\x65\x00\x00\x00\x01\x00\x00\x00\x00", string(answer[:9]), "%q", answer)
	}
	const piece = 32 << 10
	for at := 0; at < len(content); at += piece {
		ok(call(struct {
			ID     uint32 `sshtype:"6"`
			Handle string
			Offset uint64
			Data   []byte
		}{1, handle, uint64(at), content[at:min(at+piece, len(content))]})) // not negative
	}
	ok(call(struct {
		ID     uint32 `sshtype:"4"`
		Handle string
	}{1, handle}))
	require.NoError(t, in.Close())
	_, err = io.ReadAll(out)
	require.NoError(t, err)
}

func TestATerminalHasTheSizeThatItsClientAskedFor(t *testing.T) {
	t.Parallel()
	s := newFleetOn(t, sshtest.OpenSSH(t)).serveSSH(t, false)
	client := s.dial("any")
	for size, want := range map[[2]int]string{ // rows and columns; of those that are too large a thousand are left
		{3, 20}: "3 20\r\n", {0, 0}: "24 80\r\n", {1 << 31, 1 << 31}: "1000 1000\r\n",
	} {
		session, err := client.NewSession()
		require.NoError(t, err)
		require.NoError(t, session.RequestPty("xterm", size[0], size[1], nil))
		require.NoError(t, session.WindowChange(7, 7), "a later change has no effect")
		out, err := session.Output("stty size")
		require.NoError(t, err)
		require.Equal(t, want, string(out))
	}
}

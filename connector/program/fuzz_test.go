package program

import (
	"bufio"
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/wire"
)

// FuzzInspection reads the output of a VM: noise before the lines of the script changes nothing.
func FuzzInspection(f *testing.F) {
	f.Add([]byte(inspectPrefix+"platform Linux x86_64\n"+inspectPrefix+"program /usr/bin/x\n"), "Welcome")
	f.Add([]byte(inspectPrefix+"head 7f454c46020101000000000000000000030003e00100\n"+
		inspectPrefix+"other gitlab-runner\r\n"), "$ ")
	f.Add([]byte(inspectPrefix+"head 7f454c460202"), "")
	f.Add([]byte(inspectPrefix+"platform \xac\xca0\x84\xac\xca\xcd0\x84\xf3\xf3\xf3\xf3\xf3\xf3\x84\x98"+
		"\xcb\xcb\xcb\xcb\xcb\xcb"), "0")
	f.Fuzz(func(t *testing.T, out []byte, noise string) {
		seen := parseInspection(out)
		for _, other := range seen.others {
			require.Contains(t, otherRunners, other)
		}
		require.True(t, seen.platform == "" || wire.ValidPlatform(seen.platform), seen.platform)
		require.True(t, seen.built == "" || strings.HasPrefix(seen.built, "linux/"))
		require.LessOrEqual(t, len(seen.program)+len(seen.platform), len(out)+16)
		if strings.Contains(noise, "stepmux") || strings.ContainsAny(noise, "\n") {
			return
		}
		require.Equal(t, seen, parseInspection(append([]byte(noise+"\n"), out...)))
	})
}

// FuzzAnswer reads the output of the upload's script: the first line with an answer counts, and the bytes after it are
// not taken.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("Welcome\n$ " + uploadPrefix + "at /home/x/stepmux\nrest"))
	f.Add([]byte(uploadPrefix + "send\r\n"))
	f.Add([]byte(uploadPrefix + "at "))
	f.Fuzz(func(t *testing.T, said []byte) {
		r := bufio.NewReader(bytes.NewReader(said))
		command, err := readAnswer(r)
		if err != nil {
			for line := range bytes.Lines(said) {
				if bytes.HasSuffix(line, []byte("\n")) {
					require.NotEqual(t, uploadPrefix+"send\n", string(line))
					require.NotEqual(t, uploadPrefix+"send gzip\n", string(line))
				}
			}
			return
		}
		rest := make([]byte, len(said))
		n, _ := r.Read(rest)
		taken := said[:len(said)-n]
		require.True(t, bytes.HasSuffix(taken, []byte("\n")))
		require.Contains(t, string(taken), uploadPrefix)
		require.Contains(t, string(taken), command)
	})
}

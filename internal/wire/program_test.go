package wire

import (
	"bufio"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVersionTextDescribesAProgram(t *testing.T) {
	ours := Program{Name: ProgramName, Version: "v1.2.3-rc1+dirty", Platform: "linux/amd64", Protocol: 1}
	lingers := ours
	lingers.Linger = true
	for name, test := range map[string]struct {
		text string
		want Program
	}{
		"ours":          {VersionText(ours, "go1.26.8", ""), ours},
		"with features": {VersionText(lingers, "go1.26.8", ""), lingers},
		"more features": {
			"Version: 1\nName: stepmux\nFeatures: other linger\nOS/Arch: linux/amd64\n",
			Program{Name: ProgramName, Version: "1", Platform: "linux/amd64", Linger: true},
		},
		"another's features": {
			"Version: 1\nName: other\nFeatures: linger\nOS/Arch: linux/amd64\n",
			Program{Version: "1", Platform: "linux/amd64"},
		},
		"after a greeting": {"Welcome!\nVersion: of the greeting\n\n" + VersionText(ours, "go1.26.8", "abc"), ours},
		"after a prompt": {
			"user@vm:~$ Version: 1\nOS/Arch: linux/arm64\n", Program{Version: "1", Platform: "linux/arm64"},
		},
		"with \\r": {"Version: 1\r\nOS/Arch: linux/arm64\r\n", Program{Version: "1", Platform: "linux/arm64"}},
		"GitLab Runner's": {
			"Version:      17.0.0\nGit revision: 44feccdf\nGO version:   go1.22.2\n" +
				"Built:        2024-05-16T12:31:21+0000\nOS/Arch:      linux/amd64\n",
			Program{Version: "17.0.0", Platform: "linux/amd64"},
		},
		"built from source": {
			"Version: development version\nOS/Arch: linux/s390x\n",
			Program{Version: "development version", Platform: "linux/s390x"},
		},
		"another's name": {
			"Version: 1\nName: other\nProtocol: 7\nOS/Arch: linux/amd64\n",
			Program{Version: "1", Platform: "linux/amd64"},
		},
		"no number": {
			"Version: 1\nName: stepmux\nProtocol: x\nOS/Arch: linux/amd64\n",
			Program{Name: ProgramName, Version: "1", Platform: "linux/amd64"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseVersionText([]byte(test.text))
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

func TestMalformedVersionTextIsRefused(t *testing.T) {
	const noVersion, noPlatform = `no line of it begins with "Version:"`, `no line of it begins with "OS/Arch:"`
	for _, test := range [][2]string{
		{"", noVersion},
		{"Usage: program [flags]\n", noVersion},
		{"Version:\nOS/Arch: linux/amd64\n", `the program's version "" is not a valid version`},
		{"Version: <html>\nOS/Arch: linux/amd64\n", `the program's version "<html>" is not a valid version`},
		{"Version: \x1b[31m1\nOS/Arch: linux/amd64\n", "is not a valid version"},
		{"Version: " + strings.Repeat("1", 65) + "\nOS/Arch: linux/a\n", "is not a valid version"},
		{"Version: 1\n", noPlatform},
		{"Version: 1\nOS/Arch: amd64\n", "is not os/arch"},
		{"Version: 1\nOS/Arch: linux/\n", "is not os/arch"},
		{"Version: 1\nOS/Arch: linux/../x\n", "is not os/arch"},
		{"Version: 1\nOS/Arch: linux/amd64\nVersion: 2 (of a program)\n\n", noPlatform},
	} {
		text, want := test[0], test[1]
		_, err := ParseVersionText([]byte(text))
		require.ErrorContains(t, err, want, "%q", text)
	}
}

func TestProgramHelloIsAGreetingToOlderManagers(t *testing.T) {
	line := ProgramHello("v1.2.3", "linux/amd64") + LingerHello
	version, noise, err := FindRelayHello(bufio.NewReader(strings.NewReader("Welcome\n$ " + line + RelayHello(1))))
	require.NoError(t, err)
	require.Equal(t, 1, version)
	require.Equal(t, Program{Name: ProgramName, Version: "v1.2.3", Platform: "linux/amd64", Linger: true},
		FindProgramHello(noise))
	for _, noise := range []string{
		"", "Welcome\n", programHello, programHello + "linux/amd64\n", programHello + "linux v1\n",
		programHello + "a/b \x00\n",
	} {
		require.Equal(t, Program{Name: ProgramName}, FindProgramHello([]byte(noise)), "%q", noise)
	}
	require.Empty(t, ProgramHello("v1\nv2", "linux/amd64"))
	require.Empty(t, ProgramHello("v1", "linux"))
}

func FuzzProgram(f *testing.F) {
	ours := Program{Name: ProgramName, Version: "v1", Platform: "a/b", Protocol: 1}
	f.Add([]byte("noise\n" + VersionText(ours, "go1", "")))
	f.Add([]byte("$ " + ProgramHello("v1", "linux/amd64")))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := ParseVersionText(data); err == nil && p.Name == ProgramName {
			again, err := ParseVersionText([]byte(VersionText(p, "go", "")))
			require.NoError(t, err)
			require.Equal(t, p, again)
		}
		if p := FindProgramHello(data); p.Version != "" {
			p.Linger = false
			require.Equal(t, p, FindProgramHello([]byte(ProgramHello(p.Version, p.Platform))))
		}
	})
}

func TestNamesOfManagers(t *testing.T) {
	require.True(t, ValidManager(NewManager()))
	require.NotEqual(t, NewManager(), NewManager())
	for _, name := range []string{"", "a b", "a\n", "\u00e9", strings.Repeat("a", 65)} {
		require.False(t, ValidManager(name), "%q", name)
	}
}

func TestOnlyTheDirectoriesOfUploadsAreThose(t *testing.T) {
	require.True(t, IsUploadDir("0123456789abcdef"))
	for _, name := range []string{"", "bin", "0123456789abcde", "0123456789abcdefa", "0123456789ABCDEF"} {
		require.False(t, IsUploadDir(name), name)
	}
}

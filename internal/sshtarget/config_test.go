package sshtarget

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kevinburke/ssh_config"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/sshtest"
)

// where finds a machine's settings by the configuration of the home directory.
func where(t testing.TB, text string) *settings {
	t.Helper()
	c, err := load("")
	require.NoError(t, err)
	p, err := parsePlace(text)
	require.NoError(t, err)
	s, err := c.settings(t.Context(), p)
	require.NoError(t, err)
	return s
}

const example = `
User everybody
Host vm-*
    HostName %h.example.com
    Port 2222
    User ci
    IdentityFile ~/.ssh/fleet
    IdentityFile "%d/keys/%r at %h"
    IdentitiesOnly yes
    CertificateFile ~/.ssh/fleet-cert.pub
    UserKnownHostsFile ~/.ssh/fleet_hosts "/etc/fleet hosts" /etc/more_hosts
    HostKeyAlias fleet
    IdentityAgent ~/agents/%r.sock
    ProxyJump jumper@bastion:22,second
Host plain
    IdentityAgent none
    ProxyJump none
    UserKnownHostsFile none
Host usual
    IdentityFile ~/.ssh/id_rsa
`

// evaluators are the two ways to evaluate a configuration. find returns the settings that a file configures.
var evaluators = map[string]func(t *testing.T, text string) (home string, find func(string) (*settings, error)){
	"library": func(t *testing.T, text string) (string, func(string) (*settings, error)) {
		h := home(t, "")
		t.Setenv("PATH", t.TempDir())
		return h, finder(t, text, false)
	},
	"ssh": func(t *testing.T, text string) (string, func(string) (*settings, error)) {
		sshtest.RequirePart(t, "openssh-client", "/usr/bin/ssh")
		home(t, "")
		h := passwdHome(t) // ssh takes ~ from the password database
		t.Setenv("HOME", h)
		return h, finder(t, text, true)
	},
}

func finder(t *testing.T, text string, bySSH bool) func(string) (*settings, error) {
	c, err := load(put(t, filepath.Join(t.TempDir(), "config"), text))
	if err != nil {
		return func(string) (*settings, error) { return nil, err }
	}
	require.Equal(t, bySSH, c.ssh != "")
	return func(text string) (*settings, error) {
		p, err := parsePlace(text)
		require.NoError(t, err)
		s, err := c.settings(t.Context(), p)
		require.Equal(t, bySSH, c.ssh != "")
		return s, err
	}
}

// Both evaluators say the same.
func TestSettingsOfSSHConfig(t *testing.T) {
	for name, evaluate := range evaluators {
		t.Run(name, func(t *testing.T) {
			blank := put(t, filepath.Join(t.TempDir(), "fleet hosts"), "")
			h, try := evaluate(t, strings.Replace(example, "/etc/fleet hosts", blank, 1))
			t.Setenv("SSH_AUTH_SOCK", "/run/agent")
			find := func(text string) *settings {
				s, err := try(text)
				require.NoError(t, err)
				return s
			}
			require.Equal(t, &settings{
				name: "vm-1", host: "vm-1.example.com", port: "2222", user: "everybody", hostKeyAlias: "fleet",
				identities:     []string{h + "/.ssh/fleet", h + "/keys/everybody at vm-1.example.com"},
				certificates:   []string{h + "/.ssh/fleet-cert.pub"},
				identitiesOnly: true,
				agent:          h + "/agents/everybody.sock",
				knownHosts:     []string{h + "/.ssh/fleet_hosts", blank, "/etc/more_hosts"},
				proxyJump:      []string{"jumper@bastion:22", "second"},
			}, find("vm-1"))
			s := find("you@vm-2:22")
			require.Equal(t, []string{"vm-2.example.com", "22", "you"}, []string{s.host, s.port, s.user})
			s = find("plain")
			require.Empty(t, s.agent)
			require.Empty(t, s.proxyJump)
			require.Empty(t, s.identities)
			require.NotNil(t, s.knownHosts, "none is not the usual ones")
			require.Empty(t, s.knownHosts)
			s = find("usual")
			require.Equal(t, []string{h + "/.ssh/id_rsa"}, s.identities, "a usual file may be named")
			s = find("Elsewhere.example.com")
			require.Equal(t, &settings{
				name: "Elsewhere.example.com", host: "Elsewhere.example.com", port: "22", user: "everybody", agent: "/run/agent",
			}, s, "ssh's defaults are not configured values")
			s = find("ssh://vm-1")
			require.Equal(t, []string{"vm-1:22", me(t)}, []string{s.addr(), s.user}, "ssh_config does not apply to a URL")
		})
	}
}

// passwdHome is the home directory that ssh sees.
func passwdHome(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("/etc/passwd")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) > 5 && f[0] == me(t) {
			return f[5]
		}
	}
	t.Skip("part missing: this user has no home in /etc/passwd")
	return ""
}

func TestMatchIsEvaluatedBySSH(t *testing.T) {
	sshtest.RequirePart(t, "openssh-client", "/usr/bin/ssh")
	file := filepath.Join(home(t, ""), "config")
	put(t, file, "Host vm\n  HostName vm.example.com\n"+
		"Match host *.example.com exec \"exit 0\"\n  Port 2200\nMatch exec \"exit 1\"\n  User nobody\n")
	c, err := load(file)
	require.NoError(t, err)
	s, err := c.settings(t.Context(), place{host: "vm"})
	require.NoError(t, err)
	require.Equal(t, "vm.example.com:2200", s.addr())
	require.Equal(t, me(t), s.user)

	t.Setenv("PATH", t.TempDir())
	_, err = load(file)
	require.ErrorContains(t, err, "it has Match, which only ssh evaluates: install openssh-client")
}

func TestIncludedFilesCountWithAndWithoutSSH(t *testing.T) {
	h := home(t, "Include fleet\n")
	put(t, filepath.Join(h, ".ssh", "fleet"), "Host vm\n  Port 2200\n")
	t.Setenv("PATH", t.TempDir())
	require.Equal(t, "vm:2200", where(t, "vm").addr())

	// An included file that has Match needs ssh.
	put(t, filepath.Join(h, ".ssh", "fleet"), "Host vm\n  Port 2200\nInclude more\n")
	put(t, filepath.Join(h, ".ssh", "more"), "Match all\n  User ci\n")
	_, err := load("")
	require.ErrorContains(t, err, "it has Match")
}

// Without ssh a value was cut at each #, and two words in quotes were one. Now ssh reads such a file, or it is refused.
func TestValuesThatTheLibraryMisreadsAreReadBySSHOrRefused(t *testing.T) {
	for line, want := range map[string]struct{ refused, value string }{
		`"/keys/a #1"`:               {"a # within a value", "/keys/a #1"},
		`/keys/a#1`:                  {"a # within a value", "/keys/a#1"},
		`"/keys/a"  # a "comment" #`: {"", "/keys/a"},
		"/keys/a #1":                 {"", "/keys/a"},
	} {
		text := "# not #1\nHost vm\n  IdentityFile " + line + "\n"
		for name, evaluate := range evaluators {
			t.Run(name+" "+line, func(t *testing.T) {
				_, find := evaluate(t, text)
				s, err := find("vm")
				if name == "library" && want.refused != "" {
					require.ErrorContains(t, err, "it has "+want.refused+", which only ssh evaluates: install openssh-client")
					return
				}
				require.NoError(t, err)
				require.Equal(t, []string{want.value}, s.identities)
			})
		}
	}
	h := home(t, "Include fleet\n")
	put(t, filepath.Join(h, ".ssh", "fleet"), "UserKnownHostsFile \"/a b\" \"/c d\"\n")
	t.Setenv("PATH", t.TempDir())
	_, err := load("")
	require.ErrorContains(t, err, "it has several words in quotes, which only ssh evaluates")
}

func TestFilesThatIncludeThemselvesAreAnError(t *testing.T) {
	h := home(t, "")
	put(t, filepath.Join(h, ".ssh", "config"), "Include "+h+"/.ssh/config\n")
	_, err := load("")
	require.Error(t, err)
}

func FuzzAnyConfigurationIsReadOrRefused(f *testing.F) {
	f.Add("Host a\n  Port 2\nInclude x\n")
	f.Add("Match host x exec y")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(strings.ToLower(text), "include") || matchLine.MatchString(text) {
			return // other files, and other programs, are not under test
		}
		parsed, err := decode([]byte(text))
		if err != nil {
			return
		}
		c := &config{sources: make([]source, 1), parsed: []*ssh_config.Config{parsed}}
		s, err := c.settings(t.Context(), place{host: "vm"})
		if err == nil {
			require.NotEmpty(t, s.addr())
		}
	})
}

func TestConfigurationThatCannotBeReadIsAClearError(t *testing.T) {
	h := home(t, "")
	_, err := load(filepath.Join(h, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = load(h)
	require.ErrorContains(t, err, "is a directory")
	_, err = load(put(t, filepath.Join(h, "large"), strings.Repeat("# x\n", 1<<19)))
	require.ErrorContains(t, err, "larger than")
	c, err := load("none")
	require.NoError(t, err)
	s, err := c.settings(t.Context(), place{host: "vm"})
	require.NoError(t, err)
	require.Equal(t, "vm:22", s.addr())
}

func TestSettingsThatCannotBeUsedAreAClearError(t *testing.T) {
	for name, evaluate := range evaluators {
		t.Run(name, func(t *testing.T) {
			for want, text := range map[string]string{
				"ProxyCommand": "ProxyCommand nc %h %p\n",
				"port":         "Port 99999\n",
				"no %z":        "IdentityFile ~/%z\n",
				"has no NO_":   "IdentityFile ${NO_SUCH_VARIABLE}/id\n",
			} {
				_, find := evaluate(t, text)
				_, err := find("vm")
				require.ErrorContains(t, err, want)
				require.ErrorContains(t, err, "vm: ")
			}
		})
	}
}

// ssh may be installed and not run, for example because the password database does not have the user.
func TestLibraryTakesOverFromASSHThatDoesNotRun(t *testing.T) {
	sshtest.RequirePart(t, "openssh-client", "/usr/bin/ssh")
	home(t, "")
	t.Setenv("HOME", passwdHome(t))
	dir := filepath.Dir(script(t, "exit 255"))
	require.NoError(t, os.Rename(filepath.Join(dir, "command"), filepath.Join(dir, "ssh")))
	t.Setenv("PATH", dir)
	file := put(t, filepath.Join(t.TempDir(), "config"), "Host vm\n  Port 2200\n")
	c, err := load(file)
	require.NoError(t, err)
	s, err := c.settings(t.Context(), place{host: "vm"})
	require.NoError(t, err)
	require.Equal(t, "vm:2200", s.addr())

	put(t, file, "Match all\n  Port 2200\n")
	c, err = load(file)
	require.NoError(t, err)
	_, err = c.settings(t.Context(), place{host: "vm"})
	require.ErrorContains(t, err, "it has Match, which only ssh evaluates")
}

// parsePlace refuses such names, too; ssh's command line has a guard of its own.
func TestNamesThatAreOptionsAreNotGivenToSSH(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	c := &config{ssh: script(t, "touch "+ran), sources: make([]source, 1), defaults: map[string][]string{}}
	for _, p := range []place{{host: "-oProxyCommand=x"}, {host: "vm", user: "-l"}, {host: "vm", port: "-p"}} {
		_, err := c.settings(t.Context(), p)
		require.ErrorContains(t, err, "no machine has such a name")
	}
	require.NoFileExists(t, ran)
}

// ssh -G may run commands that the configuration names.
func TestSSHIsBoundedByItsContextAndItsOutput(t *testing.T) {
	for want, text := range map[string]string{"because": "exec tail -f /dev/null", "prints too much": "cat /dev/zero"} {
		c := &config{ssh: script(t, text), sources: make([]source, 1), defaults: map[string][]string{}}
		ctx, cancel := context.WithCancelCause(t.Context())
		if want == "because" {
			time.AfterFunc(50*time.Millisecond, func() { cancel(errors.New("because")) })
		}
		_, err := c.settings(ctx, place{host: "vm"})
		require.ErrorContains(t, err, want)
		cancel(nil)
	}
}

func TestAgentMayBeAVariable(t *testing.T) {
	home(t, "IdentityAgent $FLEET_AGENT\n")
	t.Setenv("FLEET_AGENT", "/run/fleet")
	require.Equal(t, "/run/fleet", where(t, "vm").agent)
	home(t, "IdentityAgent ${FLEET_AGENT}.%u\n")
	require.Equal(t, "/run/fleet."+me(t), where(t, "vm").agent)
	home(t, "IdentityAgent SSH_AUTH_SOCK\n")
	t.Setenv("SSH_AUTH_SOCK", "/run/usual")
	require.Equal(t, "/run/usual", where(t, "vm").agent)
}

func TestNamesOfMachines(t *testing.T) {
	for text, want := range map[string]place{
		"vm":                {host: "vm"},
		"ci@vm":             {user: "ci", host: "vm"},
		"ci@vm:2222":        {user: "ci", host: "vm", port: "2222"},
		"a@b@vm":            {user: "a@b", host: "vm"},
		"::1":               {host: "::1"},
		"[::1]:22":          {host: "::1", port: "22"},
		"ssh://vm":          {host: "vm", literal: true},
		"ssh://ci@vm:2222/": {user: "ci", host: "vm", port: "2222", literal: true},
		"ssh://ci@[::1]:22": {user: "ci", host: "::1", port: "22", literal: true},
	} {
		got, err := parsePlace(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for text, want := range map[string]string{
		"":                      "want ssh://",
		"@vm":                   "want ssh://",
		"vm:":                   "want ssh://",
		"a/b":                   "want ssh://",
		"vm-*":                  "want ssh://",
		"http://vm":             "want ssh://",
		"ssh:/ci@vm":            "two slashes follow ssh: want ssh://",
		"ssh:/vm":               "two slashes follow ssh: want ssh://",
		"ssh:ci@vm":             "two slashes follow ssh: want ssh://",
		"ssh://":                "want ssh://",
		"ssh://vm/path":         "nothing may follow",
		"ssh://me:secret@vm":    "no password in the URL",
		"ssh://me:sec%zret@vm":  "not a URL",
		"-oProxyCommand=x":      "no machine or user",
		"-l@vm":                 "no machine or user",
		"ssh://-oProxy":         "no machine or user",
		"vm;reboot":             "no machine or user",
		"$(reboot)":             "no machine or user",
		"ssh://ci@vm%20x":       "",
		"ci@vm name":            "no machine or user",
		"ssh://me:secret@vm/xx": "nothing may follow",
	} {
		_, err := parsePlace(text)
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "secret")
	}
}

func FuzzNamesOfMachinesAreSafe(f *testing.F) {
	f.Add("ssh://ci@vm:22")
	f.Add("ci@[::1]:22")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePlace(text)
		if err != nil {
			return
		}
		require.NotEmpty(t, p.host)
		require.False(t, strings.HasPrefix(p.host, "-") || strings.HasPrefix(p.user, "-"))
		require.False(t, strings.ContainsAny(p.host+p.user, " \n;$"))
	})
}

package runnerconfig

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
)

var update = flag.Bool("update", false, "write the file of the example")

func convert(t *testing.T, text string) *Converted {
	t.Helper()
	made, err := Convert([]byte(text), "/etc/stepmux")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(made.File, &map[string]any{}), "%s", made.File)
	return made
}

// The list is written by the module internal/testing/gitlabtest/runner, from the structs of GitLab Runner.
func TestEachKeyOfGitLabRunnerIsKnown(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.FromSlash("../../../../internal/testing/gitlabtest/testdata/config-19.4.0.keys"))
	require.NoError(t, err)
	keys := strings.Fields(strings.ToLower(string(text)))
	require.Greater(t, len(keys), 700)
	known := map[string]bool{"runners": true}
	for _, key := range keys { // a table comes before its keys
		at := strings.LastIndexByte(key, '.')
		found, is := rules[key]
		if !is && at > 0 {
			found, is = rules[key[:at]]
			is = is && (found.note != "" || found.do != nil) || known[key[:at]+"."]
			known[key+"."] = is // what is inside, too
		}
		require.True(t, is || known[key], "the key %s has no rule", key)
		known[key+"."] = known[key+"."] || found.note != "" || found.do != nil
		known[key] = true
	}
	for key := range rules {
		require.True(t, known[key], "GitLab Runner has no key %s", key)
	}
}

const example = `
concurrent = 4
check_interval = 0
log_level = "warning"
listen_address = ":9252"
shutdown_timeout = 0
[session_server]
  session_timeout = 1800

[[runners]]
  name = "Ruby 3.1 (docker)"
  url = "https://gitlab.example.com/"
  id = 17
  token = "glrt-secret-one"
  token_obtained_at = 2026-01-02T03:04:05Z
  token_expires_at = 0001-01-01T00:00:00Z
  executor = "docker"
  limit = 10
  environment = ["A=b=c", "EMPTY="]
  tls-ca-file = "/etc/gitlab-runner/ca.crt"
  builds_dir = ""
  pre_build_script = "echo before"
  [runners.cache]
    Type = "s3"
    MaxUploadedArchiveSize = 0
    [runners.cache.s3]
      ServerAddress = "s3.example.com"
  [runners.docker]
    image = "ruby:3.1"
    privileged = true
    disable_cache = false
    volumes = ["/cache", "/srv/data:/data:ro", "/var/run/docker.sock:/var/run/docker.sock"]
    pull_policy = ["if-not-present", "always"]
    extra_hosts = ["db:10.0.0.2"]
    memory = "512m"
    cpus = "1.5"
    network_mode = "bridge"
    shm_size = 0
    [runners.docker.tmpfs]
      "/var/lib/mysql" = "rw,noexec"
    [[runners.docker.services]]
      name = "postgres:17"
      alias = "db"

[[runners]]
  name = "Ruby 3.1 (docker)"
  url = "https://gitlab.example.com"
  token = "glrt-secret-two"
  executor = "docker"
  [runners.docker]
    image = "node:24"
    memory = "1g"
    some_new_key = 1
`

func TestAConfigurationBecomesThatOfAManager(t *testing.T) {
	t.Parallel()
	made := convert(t, example)
	want, err := os.ReadFile(filepath.FromSlash("testdata/docker.yml"))
	if *update {
		require.NoError(t, os.WriteFile(filepath.FromSlash("testdata/docker.yml"), made.File, 0o644))
	}
	require.NoError(t, err)
	require.Equal(t, string(want), string(made.File))
	require.NotContains(t, string(made.File), "secret")
	require.Equal(t, map[string]string{
		"/etc/stepmux/gitlab-ruby-3-1-docker.token":   "glrt-secret-one",
		"/etc/stepmux/gitlab-ruby-3-1-docker-2.token": "glrt-secret-two",
	}, made.Tokens)
}

func TestExecutorsSayWhereJobsRun(t *testing.T) {
	t.Parallel()
	runner := func(executor, more string) string {
		return "[[runners]]\nname = \"r-" + executor + "\"\nurl = \"https://g\"\ntoken = \"t\"\nexecutor = " +
			"\"" + executor + "\"\n" +
			more + "\n"
	}
	for _, c := range []struct {
		name, text string
		want, not  []string
	}{
		{
			"shell", runner("shell", `shell = "pwsh"`),
			[]string{"inventory: /etc/stepmux/fleet.yml", "# executor: shell ran jobs on this machine", "# shell: scripts run " +
				"with"},
			[]string{"limit:"},
		},
		{
			"ssh", runner("ssh", "[runners.ssh]\nhost = \"vm\"\nport = \"2222\"\nuser = \"ci\"\npassword = \"secret\"\n"+
				"identity_file = \"/k\"\nknown_hosts_file = \"/h\"\ndisable_strict_host_key_checking = true"),
			[]string{
				"- r-ssh=ssh://ci@vm:2222", "identity:", "- /k", "known-hosts:", "# ssh.password: logins are by keys",
				"# ssh.disable_strict_host_key_checking: host keys",
			},
			[]string{"secret", "inventory"},
		},
		{
			"two of ssh", runner("ssh", "[runners.ssh]\nhost = \"a\"") + runner("ssh", "[runners.ssh]\nhost = \"b\""),
			[]string{"- r-ssh=ssh://a", "- r-ssh-2=ssh://b", "# ssh: jobs run on any VM"},
			nil,
		},
		{
			"ssh and docker", runner("docker", "") + runner("ssh", "[runners.ssh]\nhost = \"a\""),
			[]string{"inventory:", "# ssh: add the VM a to the inventory"},
			[]string{"instance:"},
		},
		{
			"instance", "concurrent = 50\n" + runner("instance", "[runners.autoscaler]\nplugin = "+
				"\"aws\"\ncapacity_per_instance = 5\n"+
				"max_use_count = 1\n[runners.autoscaler.connector_config]\nusername = \"ci\"\nkey_path = \"/k\"\n"+
				"[[runners.autoscaler.policy]]\nidle_count = 5"),
			[]string{
				"capacity: 5", "- /k", "user: ci into the defaults", "# autoscaler.policy: no plugin", "max_uses",
				"limit: 50",
			},
			nil,
		},
		{
			"custom", runner("custom", "[runners.custom]\nrun_exec = \"/d\""),
			[]string{"# custom: no driver is called", "# executor: jobs run on the VMs of the inventory"},
			nil,
		},
		{
			"kubernetes", runner("kubernetes", "[runners.kubernetes]\nimage = \"alpine:3\"\nnamespace = \"ci\"\ncpu_limit = "+
				"\"500m\"\n"+
				"memory_limit = \"1Gi\"\nprivileged = true\n[runners.kubernetes.node_selector]\nzone = \"a\""),
			[]string{
				"kubernetes: true", "namespace: ci", "build-cpus: \"0.5\"", "build-memory: 1G", "image: alpine:3",
				"# kubernetes.node_selector: write it into the Pod",
			},
			[]string{"inventory"},
		},
		{
			"kubernetes and docker", runner("kubernetes", "") + runner("docker", ""),
			[]string{"# executor: a manager runs its jobs in pods or on VMs"},
			[]string{"kubernetes: true"},
		},
		{"services with a network", runner("docker", "[runners.docker]\nnetwork_mode = "+
			"\"host\"\n[[runners.docker.services]]\n"+
			"name = \"a\""), []string{"# docker.network_mode: jobs with services", "service:"}, []string{"\nnetwork:"}},
		{
			"another's section", runner("shell", "[runners.docker]\nimage = \"a\""),
			[]string{"# docker: the executor shell does not use it"},
			[]string{"image:"},
		},
		{
			"no token", "[[runners]]\nurl = \"https://g\"",
			[]string{"# token: it is missing", "name: g", "# executor: it is " +
				"missing"},
			nil,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := string(convert(t, c.text).File)
			for _, want := range c.want {
				require.Contains(t, file, want)
			}
			for _, not := range c.not {
				require.NotContains(t, file, not)
			}
		})
	}
}

func TestAConfigurationThatIsWrongSaysWhere(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"concurrent = ":             "line 1: ",
		"concurrent = 4":            "there is no [[runners]] in it",
		"[runners]\nname = \"a\"":   "write [[runners]]",
		"runners = 3":               "write [[runners]]",
		"[[runners]]\nname = \"a\"": "[[runners]] 1: url is missing",
		"[[runners]]\nurl = 3":      "[[runners]] 1: url is 3: write a text",
		"[[runners]]\nurl = \"https://g\"\nlimit = \"4\"": "[[runners]] 1: limit is 4: " +
			"write a number",
		"[[runners]]\nurl = \"https://g\"\nlimit = 99999999999":        "write a smaller number",
		"[[runners]]\nurl = \"https://g\"\nenvironment = [\"SECRET\"]": "write NAME=VALUE",
		"[[runners]]\nurl = \"https://g\"\ndocker = 3":                 "docker is 3: write a table",
		"log_level = \"loud\"\n[[runners]]\nurl = \"https://g\"":       "log_level is loud",
		"listen_address = \"9252\"\n[[runners]]\nurl = \"https://g\"": "listen_address is 9252: " +
			"write HOST:PORT",
		"[[runners]]\nurl = \"https://g\"\nexecutor = \"docker\"\ndocker.pull_policy = \"x\"": "docker.pull_policy is x",
	} {
		_, err := Convert([]byte(text), "d")
		require.ErrorContains(t, err, want, "%s", text)
	}
}

// A file of any content is an error or a file.
func FuzzConvert(f *testing.F) {
	f.Add([]byte(example))
	f.Fuzz(func(t *testing.T, text []byte) {
		made, err := Convert(text, "d")
		if err == nil {
			require.NoError(t, yaml.Unmarshal(made.File, &map[string]any{}), "%s", made.File)
		}
	})
}

package action

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/stepmux/stepmux/remote/step/engine"
)

// daemonPatience is how long a docker daemon may take to start.
const daemonPatience = time.Minute

// dockerHost returns the address of a docker daemon: the one that runs here, or a private one.
func dockerHost(t *testing.T) string {
	t.Helper()
	docker := needs(t, "docker")
	if exec.Command(docker, "info").Run() == nil {
		return cmp.Or(os.Getenv("DOCKER_HOST"), "unix:///var/run/docker.sock")
	}
	daemon := needs(t, "dockerd")
	if os.Getuid() != 0 {
		t.Skip("part missing: only root can start a docker daemon")
	}
	dir, err := os.MkdirTemp("", "dk") //nolint:usetesting // the path of a socket is short
	require.NoError(t, err)
	host := "unix://" + dir + "/s"
	cmd := exec.Command(daemon, "--data-root", dir+"/data", "--exec-root", dir+"/exec", "--pidfile", dir+"/pid",
		"-H", host, "--iptables=false", "--ip6tables=false", "--bridge=none")
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(unix.SIGTERM))
		_ = cmd.Wait() // its exit status says nothing
		require.NoError(t, log.Close())
		require.NoError(t, os.RemoveAll(dir))
	})
	require.Eventually(t, func() bool {
		info := exec.Command(docker, "info")
		info.Env = append(os.Environ(), "DOCKER_HOST="+host)
		return info.Run() == nil
	}, daemonPatience, 200*time.Millisecond)
	return host
}

//stepmux:faults input | A docker action ignores its signals when the job is stopped
func TestStoppedDockerActionLeavesNoContainer(t *testing.T) {
	tr := newTrial(t)
	t.Setenv("DOCKER_HOST", dockerHost(t))
	tr.cfg.Env = map[string]string{"DOCKER_HOST": os.Getenv("DOCKER_HOST")}
	provideImage(t, "alpine:3.22")
	tr.file("a/action.yml", "runs:\n  using: docker\n  image: docker://alpine:3.22\n  entrypoint: /bin/sh\n"+
		"  args: [-c, 'echo begun; trap \"\" INT TERM; while :; do cat /dev/null; done']\n")
	tr.workflow("- uses: ./a\n")
	res := tr.runWith(func(r *engine.Runner) { tr.log.On("begun", func() { r.Stop("no longer wanted", time.Second) }) })
	require.Equal(t, engine.Cancelled, res.Status, res.Message)
	require.Eventually(t, func() bool { // docker itself may be going on with the removal: --rm
		out, err := exec.Command("docker", "ps", "--quiet", "--all").Output()
		return err == nil && strings.TrimSpace(string(out)) == ""
	}, daemonPatience, 20*time.Millisecond, "a container is left")
}

func TestMountsAndPathsOfADockerAction(t *testing.T) {
	tr := newTrial(t)
	t.Setenv("DOCKER_HOST", dockerHost(t))
	tr.cfg.Env = map[string]string{"DOCKER_HOST": os.Getenv("DOCKER_HOST")}
	provideImage(t, "alpine:3.22")
	tr.file("file", "of the workspace\n")
	tr.workflow(`- uses: docker://alpine:3.22
  env: {PASSED: "on", SOCKET: /var/run/docker.sock}
  with:
    entrypoint: /bin/sh
    args: -c "cat file; echo $PASSED $HOME $GITHUB_WORKSPACE $RUNNER_TEMP; ls $SOCKET 2>&1; echo x=y >> $GITHUB_ENV"
- run: echo "then $x"
`)
	tr.succeed()
	require.Contains(t, tr.log.String(),
		"of the workspace\non /github/home /github/workspace /github/runner_temp\n")
	require.Contains(t, tr.log.String(), "then y\n")
	require.Contains(t, tr.log.String(), "No such file", "the socket is not there")
}

// fakeDocker puts a program docker into the job's directory tools, which PATH begins with. It knows the image
// alpine:3 after it was pulled.
func fakeDocker(tr *trial) {
	tr.t.Helper()
	tr.file("tools/docker.sh", `#!/bin/sh
case $1 in
pull|build) [ -e says ] && { cat says >&2; exit 1; };;
esac
case $1 in
image)
	[ -e pulled ] || { echo "no such image" >&2; exit 1; }
	echo "sha256:`+strings.Repeat("1", 64)+` [\"other@sha256:`+strings.Repeat("3", 64)+`\",\"alpine@sha256:`+
		strings.Repeat("2", 64)+`\"]";;
pull) echo "pull $2"; touch pulled;;
build) echo "build $3"; printf 'sha256:`+strings.Repeat("4", 64)+`' > "$5";;
run) echo "run $(echo "$@" | grep -o '[a-z0-9]*[@:]*sha256:[0-9]*')"
	[ -e tell ] || exit 0
	while case $1 in *sha256:*) false;; esac do [ "$1" != --entrypoint ] || program=$2; shift; done
	shift
	echo "program $program, arguments ($*), F $F, G $G, CI $CI";;
esac
`)
	dir := filepath.Join(tr.place.WorkDir, "tools")
	require.NoError(tr.t, os.Rename(filepath.Join(dir, "docker.sh"), filepath.Join(dir, "docker")))
	tr.cfg.RunnerEnv = append(tr.cfg.RunnerEnv, "PATH="+dir+":"+os.Getenv("PATH"))
}

// Symptom: a daemon that did not run was a failure of the script, so the build ran on no other machine.
//
//stepmux:faults users | A daemon of docker or a registry that does not answer counts as a failure of the script
//stepmux:with remote/step/action.TestAnImageThatDockerCannotGetIsAFaultOfTheSystemUnlessItsNameIs
func TestAMachineWhoseDockerFailsIsAFaultOfTheSystem(t *testing.T) {
	tr := newTrial(t)
	docker := needs(t, "docker")
	tr.cfg.Env = map[string]string{"DOCKER_HOST": "unix:///none", "PATH": filepath.Dir(docker) + ":" + os.Getenv("PATH")}
	tr.file("a/action.yml", "runs: {using: docker, image: Dockerfile}\n")
	tr.file("a/Dockerfile", "FROM scratch\n")
	for _, action := range []string{"docker://busybox:1", "./a"} {
		tr.steps("- {name: a, action: '" + action + "'}\n")
		res := tr.run()
		require.Equal(t, engine.Failure, res.Status)
		require.Contains(t, res.Message, "its daemon does not answer: start it, or let this user use it")
		require.True(t, res.System, res.Message)
	}
}

func TestAnImageThatDockerCannotGetIsAFaultOfTheSystemUnlessItsNameIs(t *testing.T) {
	for said, system := range map[string]bool{
		`Get "https://r/v2/": dial tcp: lookup r: no such host`:                                true,
		`Error: initializing source docker://r/a: pinging container registry r: i/o timeout`:   true,
		"toomanyrequests: You have reached your pull rate limit":                               true,
		"received unexpected HTTP status: 503 Service Unavailable":                             true,
		"failed to register layer: write /x: no space left on device":                          true,
		"manifest for r/a:1 not found: manifest unknown":                                       false,
		"pull access denied for a, repository does not exist: denied: requested access is not": false,
		"dial tcp: connection refused\nThe command '/bin/sh -c x' returned a non-zero code: 1": false,
	} {
		tr := newTrial(t)
		fakeDocker(tr)
		tr.file("says", said+"\n")
		tr.file("a/action.yml", "runs: {using: docker, image: Dockerfile}\n")
		for _, action := range []string{"docker://alpine:3", "./a"} {
			tr.steps("- {name: a, action: '" + action + "'}\n")
			res := tr.run()
			require.Equal(t, engine.Failure, res.Status)
			require.Contains(t, res.Message, "the docker command failed")
			require.Equal(t, system, res.System, "%s: %s", said, res.Message)
		}
	}
}

// As actions/runner does in ContainerActionHandler.
func TestArgumentsAndVariablesOfADockerActionAreThoseOfGitHub(t *testing.T) {
	tr := newTrial(t)
	fakeDocker(tr)
	tr.file("tell", "")
	tr.file("a/action.yml", "inputs: {args: {}}\n"+
		"runs: {using: docker, image: 'docker://alpine:3', env: {F: action, G: action}}\n")
	tr.file("b/action.yml", "inputs: {args: {}}\n"+
		"runs: {using: docker, image: 'docker://alpine:3', args: [b, '${{ inputs.args }}']}\n")
	tr.workflow(`
- {uses: ./a, env: {F: step, CI: 0}}
- {uses: ./a, with: {args: x 'y z', entrypoint: sh}}
- {uses: ./b, with: {args: x}}
`)
	tr.succeed()
	var told []string
	for line := range strings.Lines(tr.log.String()) {
		if strings.HasPrefix(line, "program") {
			told = append(told, line)
		}
	}
	require.Equal(t, []string{
		"program , arguments (), F step, G action, CI 0\n",
		"program sh, arguments (x y z), F action, G action, CI true\n",
		"program , arguments (b x), F , G , CI true\n",
	}, told)
}

func TestContainersAreMadeFromTheDigestOfTheirImage(t *testing.T) {
	tr := newTrial(t)
	fakeDocker(tr)
	tr.file("a/action.yml", "runs: {using: docker, image: Dockerfile}\n")
	tr.workflow("- uses: docker://alpine:3\n- uses: docker://alpine:3\n- uses: ./a\n")
	tr.succeed()
	pulled := "alpine@sha256:" + strings.Repeat("2", 64)
	require.Equal(t, "pull alpine:3\nrun "+pulled+"\nrun "+pulled+
		"\nbuild stepmux-action:local\nrun sha256:"+strings.Repeat("4", 64)+"\n", tr.log.String())
	recorded, err := json.Marshal(tr.trace.Identity.Steps[0].Steps[1].Exec)
	require.NoError(t, err)
	require.Contains(t, string(recorded), pulled)

	tr.workflow("- {uses: 'docker://--privileged', with: {args: x}}\n")
	tr.fail(`"--privileged" is not the name of an image`)

	tr.action.RequirePinned = true
	tr.workflow("- uses: docker://alpine:3\n")
	tr.fail(`the image "alpine:3" is not pinned: write name@sha256:digest`)
	tr.workflow("- uses: docker://" + pulled + "\n")
	tr.succeed()
}

// As actions/runner does in ContainerActionHandler, for all variables. Symptom: an input such as
// ${{ github.workspace }}/out was the path outside of the container.
func TestPathsInVariablesOfADockerActionAreThoseInTheContainer(t *testing.T) {
	tr := newTrial(t)
	fakeDocker(tr)
	tr.file("tell", "")
	tr.file("a/action.yml", "runs: {using: docker, image: 'docker://alpine:3', env: {G: '${{ github.workspace }}'}}\n")
	tr.workflow("- {uses: ./a, env: {F: '${{ github.workspace }}/out'}}\n").succeed()
	require.Contains(t, tr.log.String(), "F /github/workspace/out, G /github/workspace,")
}

package action

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stepmux/stepmux/internal/lazyregexp"
	"github.com/stepmux/stepmux/internal/netfault"
	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/action/expression"
	"github.com/stepmux/stepmux/remote/step/component"
	"github.com/stepmux/stepmux/remote/step/engine"
)

// Directories in the container of a docker action.
const (
	inWorkspace = "/github/workspace"
	inHome      = "/github/home"
	inWorkflow  = "/github/workflow"
	inFiles     = "/github/file_commands"
	inTemp      = "/github/runner_temp"
)

const dockerSocket = "/var/run/docker.sock"

const (
	// runFailed is the exit status of docker run if the container did not start, and of a podman that fails.
	runFailed = 125
	// clientFailed is the exit status of other docker commands that fail.
	clientFailed = 1
)

// runDocker runs an action by the docker command: a stage with its own program, or with the image's.
func (x *running) runDocker(
	ctx context.Context, res *engine.StepResult, env map[string]string, entrypoint string,
) engine.Result {
	p := process{files: newFiles(x.call)}
	if err := x.begin(res, p, engine.Command); err != nil {
		return engine.Failed(err)
	}
	host := x.environment(p.files)
	docker, err := x.docker(host)
	if err != nil {
		return x.failed(err)
	}
	image, o := x.image(ctx, docker, host)
	if o.Status != engine.Success {
		return o
	}
	if err := p.files.create(); err != nil {
		return engine.Failed(err)
	}
	port := x.servicesPort(ctx, docker, image, host, p.files)
	defer port.close()
	argv, inside, err := x.dockerRun(docker, image, entrypoint, env, p.files, port)
	if err != nil {
		return x.failed(err)
	}
	// The docker command passes on the variables that its arguments name, so that no value is in an argument. Variables
	// that would change the docker command itself are left out.
	all := maps.Clone(host)
	maps.Copy(all, inside)
	for _, name := range clientVariables {
		if v, there := host[name]; there {
			all[name] = v
		}
	}
	p.Argv, p.Dir = argv, x.work()
	o = x.exec(ctx, p, all)
	x.removeContainer(context.WithoutCancel(ctx), docker, p.files, host)
	if o.ExitCode == runFailed {
		return x.explain(ctx, o, docker, host, "")
	}
	return o
}

// cidFile is the name of the file that gets the id of a container.
func cidFile(f files) string { return f.name + ".cid" }

// containerID matches the id of a container.
var containerID = lazyregexp.New("^[0-9a-f]{64}$")

// removeTimeout bounds the removal of a container.
const removeTimeout = 10 * time.Second

// removeContainer removes a container that outlived the docker command, for example because that was killed. It must be
// safe against steps: a step may have written the file with the id, and PATH decides which program docker is.
func (x *running) removeContainer(ctx context.Context, docker string, f files, env map[string]string) {
	id, err := x.call.ReadFile(cidFile(f))
	x.call.Remove(cidFile(f))
	if err != nil || !containerID().Match(id) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	// Most containers are gone already, so this command usually fails.
	_ = x.call.Tidy(ctx, proc.Command{
		Argv: []string{docker, "rm", "--force", string(id)}, Env: lines(env), Dir: x.work(), Visible: x.work(),
	})
}

// clientVariables are the variables that the docker command itself needs.
var clientVariables = []string{"PATH", "HOME", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "TMPDIR"}

// image gets the image of the action. It returns the name for docker run. That name has the digest of the image, so
// that the trace has it too, and so that no other job can replace the image.
func (x *running) image(ctx context.Context, docker string, env map[string]string) (string, engine.Result) {
	found := engine.Result{Status: engine.Success}
	name, pulled := strings.CutPrefix(x.spec.loaded.image, "docker://")
	if !pulled {
		return x.build(ctx, docker, env)
	}
	if strings.HasPrefix(name, "-") {
		return "", x.failed(fmt.Errorf("%.160q is not the name of an image", name))
	}
	if x.cfg.RequirePinned && !imageDigest().MatchString(name) {
		return "", x.failed(fmt.Errorf("the image %.160q is not pinned: write name@sha256:digest, or leave out "+
			"--require-pinned", name))
	}
	if id := x.imageID(ctx, docker, name, env); id != "" {
		return id, found
	}
	if o := x.runClient(ctx, []string{docker, "pull", name}, env); o.Status != engine.Success {
		return "", o
	}
	if id := x.imageID(ctx, docker, name, env); id != "" {
		return id, found
	}
	return "", x.failed(fmt.Errorf("%s did not print the digest of its image %.160q", docker, name))
}

var (
	// imageDigest matches an image name with a digest.
	imageDigest = lazyregexp.New(`@sha256:[0-9a-f]{64}$`)
	// imageID matches the id of an image on this machine.
	imageID = lazyregexp.New(`^(sha256:)?[0-9a-f]{64}$`)
)

// maxInspected bounds the description of an image, in bytes.
const maxInspected = 64 << 10

// inspectTimeout bounds a call of the docker daemon.
const inspectTimeout = 30 * time.Second

// imageID returns the name and the digest of an image as its registry has them, or its id if it comes from no registry.
// It returns "" if the image is not on this machine.
func (x *running) imageID(ctx context.Context, docker, name string, env map[string]string) string {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	var out beginning
	err := x.call.Tidy(ctx, proc.Command{
		Argv: []string{docker, "image", "inspect", "--format", "{{.Id}} {{json .RepoDigests}}", name},
		Env:  lines(env), Dir: x.work(), Visible: x.work(), Stdout: &out, Stderr: io.Discard,
	})
	id, list, _ := strings.Cut(strings.TrimSpace(string(out.text)), " ")
	if err != nil || !imageID().MatchString(id) {
		return ""
	}
	var digests []string
	_ = json.Unmarshal([]byte(list), &digests) // an image that was built here has no digests
	if imageDigest().MatchString(name) {
		return name
	}
	repository := name
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		repository = name[:colon]
	}
	for _, d := range digests {
		if strings.HasPrefix(d, repository+"@") && imageDigest().MatchString(d) {
			return d
		}
	}
	return id
}

// beginning keeps the first maxInspected bytes of a text.
type beginning struct{ text []byte }

func (b *beginning) Write(p []byte) (int, error) {
	b.text = append(b.text, p[:min(len(p), maxInspected-len(b.text))]...)
	return len(p), nil
}

// runClient runs the docker command, with its output in the log, to get an image.
func (x *running) runClient(ctx context.Context, argv []string, env map[string]string) engine.Result {
	p := process{files: newFiles(x.call)}
	if err := p.files.create(); err != nil {
		return engine.Failed(err)
	}
	var stderr tail.Writer
	p.Argv, p.Dir, p.Stderr = argv, x.work(), &stderr
	return x.explain(ctx, x.exec(ctx, p, env), argv[0], env, stderr.String())
}

// explain adds the likely cause to the failure of a docker command. The failure is the system's if the daemon does not
// answer, or if the last line of stderr, the command's error output, says so.
func (x *running) explain(
	ctx context.Context, o engine.Result, docker string, env map[string]string, stderr string,
) engine.Result {
	if o.Status != engine.Failure || o.ExitCode != runFailed && o.ExitCode != clientFailed {
		return o
	}
	said := fmt.Sprintf("the output says more: exit status %d", o.ExitCode)
	is, server := netfault.OfDocker(stderr[strings.LastIndex(stderr, " | ")+1:])
	switch {
	case !x.answers(ctx, docker, env):
		return x.failed(&component.SystemError{Err: errors.New("the docker command failed, and its daemon does not answer: " +
			"start it, or let this user use it; " + said)})
	case is:
		return x.failed(&component.SystemError{Server: server, Err: errors.New("the docker command failed because of the " +
			"registry, the network or this machine; " + said)})
	}
	o.Message = x.failed(errors.New("the docker command failed; " + said)).Message
	return o
}

// answers reports whether the docker command reaches its daemon.
func (x *running) answers(ctx context.Context, docker string, env map[string]string) bool {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	var out beginning
	_ = x.call.Tidy(ctx, proc.Command{ // without a daemon the command fails, and there is no output
		Argv: []string{"/bin/sh", "-c", `"$0" version >/dev/null 2>&1 && echo yes`, docker},
		Env:  lines(env), Dir: x.work(), Visible: x.work(), Stdout: &out, Stderr: io.Discard,
	})
	return len(out.text) > 0
}

// docker returns the path of the program docker.
func (x *running) docker(env map[string]string) (string, error) {
	if x.cfg.Docker != "" {
		return x.configured(x.cfg.Docker, "--docker", env)
	}
	for _, name := range []string{"docker", "podman"} {
		if found, err := proc.Find(name, x.work(), lines(env)); err == nil {
			return found, nil
		}
	}
	return "", &component.SystemError{Err: errors.New("neither docker nor podman is in PATH: install one of them where " +
		"the job runs, or name it with --docker")}
}

// build builds the image of the action's Dockerfile, and returns its id.
func (x *running) build(ctx context.Context, docker string, env map[string]string) (string, engine.Result) {
	a := x.spec.loaded
	file := filepath.Join(a.dir, a.image)
	if !strings.HasPrefix(file, a.root+"/") {
		return "", x.failed(fmt.Errorf("the action's image %.160q is neither a Dockerfile of the action nor docker://",
			a.image))
	}
	tag := "local"
	if a.component != nil {
		tag = strings.TrimPrefix(a.component.Tree, "sha256:")
	}
	iid := x.call.FilesDir() + ".iid"
	defer x.call.Remove(iid)
	o := x.runClient(ctx, []string{
		docker, "build", "--tag", "stepmux-action:" + tag, "--iidfile", x.call.Path(iid), "--file", file, filepath.Dir(file),
	}, env)
	if o.Status != engine.Success {
		return "", o
	}
	id, err := x.call.ReadFile(iid)
	if text := strings.TrimSpace(string(id)); err == nil && imageID().MatchString(text) {
		return text, o
	}
	return "", x.failed(fmt.Errorf("%s build did not print the digest of the image", docker))
}

// dockerRun returns the command that runs a container, and the environment in it.
func (x *running) dockerRun(
	docker, image, entrypoint string, env map[string]string, f files, port *servicesPort,
) (argv []string, inside map[string]string, err error) {
	entrypoint = cmp.Or(entrypoint, env["INPUT_ENTRYPOINT"])
	argv = []string{
		docker, "run", "--rm", "--cidfile", x.call.Path(cidFile(f)), "--workdir", inWorkspace,
	}
	for _, dir := range [][2]string{
		{x.work(), inWorkspace}, {x.home(), inHome}, {x.base(), inWorkflow}, {f.dir(), inFiles}, {x.temp(), inTemp},
	} {
		argv = append(argv, port.volume(dir[0], dir[1])...)
	}
	if x.cfg.DockerSocket {
		argv = append(argv, "--volume", dockerSocket+":"+dockerSocket)
	}
	inside, args, err := x.dockerEnv(env, f)
	if err != nil {
		return nil, nil, err
	}
	var flags []string
	flags, entrypoint, args = port.around(entrypoint, args)
	if argv = append(argv, flags...); entrypoint != "" {
		argv = append(argv, "--entrypoint", entrypoint)
	}
	if flags != nil {
		setServices(x.call.Services(), inside)
	}
	for _, name := range sortedkeys.Of(inside) {
		inside[name] = x.translate(inside[name], f)
		if slices.Contains(clientVariables, name) {
			argv = append(argv, "--env", name+"="+inside[name])
		} else {
			argv = append(argv, "--env", name)
		}
	}
	return append(append(argv, image), args...), inside, nil
}

// dockerEnv returns the environment in the container, with paths of the machine, and the arguments. As GitHub has it, a
// variable of the step goes before one of the action, and arguments of the action before the input args.
func (x *running) dockerEnv(env map[string]string, f files) (inside map[string]string, args []string, err error) {
	a := x.spec.loaded
	inside = map[string]string{}
	maps.Copy(inside, x.global) // variables of the machine are wrong in the container
	maps.Copy(inside, x.list.env)
	maps.Copy(inside, x.env)
	maps.Copy(inside, env)
	named := map[string]string{}
	for _, in := range a.inputs {
		named[in.name] = env[inputVariable(in.name)]
	}
	inner := *x.list
	inner.action, inner.inputs, inner.file = a, expression.Texts(named), a.name()+"/"+a.file
	for _, e := range a.env {
		if _, there := inside[e.name]; there {
			continue
		}
		set, err := inner.settings([]setting{e}, "env")
		if err != nil {
			return nil, nil, err
		}
		for name, text := range set {
			if _, there := inside[name]; !there {
				inside[name] = text
			}
		}
	}
	maps.Copy(inside, x.variables(f, actionName(x.spec)))
	setCI(inside)
	inside["HOME"] = inHome
	if given := env["INPUT_ARGS"]; a.args == nil && strings.TrimSpace(given) != "" {
		args, err = split(given)
		return inside, args, err
	}
	for _, arg := range a.args {
		text, err := inner.text(arg, 0, "args")
		if err != nil {
			return nil, nil, err
		}
		args = append(args, text)
	}
	return inside, args, nil
}

// translate replaces a path of the machine by its path in the container.
func (x *running) translate(value string, f files) string {
	for _, m := range [][2]string{
		{f.dir(), inFiles}, {x.temp(), inTemp}, {x.base(), inWorkflow}, {x.work(), inWorkspace},
	} {
		if rest, ok := strings.CutPrefix(value, m[0]); ok && (rest == "" || rest[0] == os.PathSeparator) {
			return m[1] + rest
		}
	}
	return value
}

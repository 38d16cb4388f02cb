package action

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/stepmux/stepmux/internal/wire"
	"github.com/stepmux/stepmux/remote/innerport"
	"github.com/stepmux/stepmux/remote/proc"
)

// Places in the container of an action: our program, and the socket of the services.
const (
	inProgram = "/github/stepmux"
	inSocket  = "/github/stepmux.sock"
)

// servicesPort lets the container of an action reach the services at their address. It is nil if it does not.
type servicesPort struct {
	network          string // the only field if the job has a container, whose network the action gets then
	door             *innerport.Door
	address          string
	program, socket  string   // on this machine
	entrypoint, argv []string // of the image
}

// servicesPort returns the port of a container that is about to run. The caller closes it.
func (x *running) servicesPort(
	ctx context.Context, docker, image string, env map[string]string, f files,
) *servicesPort {
	address, ok := strings.CutPrefix(x.call.Services().URL, "http://")
	program, err := os.Executable()
	if err == nil && ofContainer(program) {
		return x.besideJob(ctx, docker, env)
	}
	if !ok {
		return nil
	}
	p := &servicesPort{address: address, socket: x.call.Path(f.name + ".sock"), program: program}
	if err == nil {
		beside := filepath.Join(filepath.Dir(p.program), wire.FetchProgram) // else this program has its commands
		if _, err := os.Stat(beside); err == nil {
			p.program = beside
		}
		_, err = os.Stat(p.program) // it may have been replaced
	}
	if err == nil {
		err = x.askProgram(ctx, docker, image, env, p)
	}
	if err == nil {
		p.door, err = innerport.Open(p.socket, address) //nolint:contextcheck // it ends with close
	}
	if err != nil {
		x.warnOfServices(err)
		return nil
	}
	return p
}

func (x *running) warnOfServices(err error) {
	addWarning(x.now, fmt.Sprintf("the action has no services for artifacts and caches: %v", err))
}

// ofContainer reports whether a path is one of the step runner in the container of a job.
func ofContainer(path string) bool { return strings.HasPrefix(path, wire.ContainerHome+"/") }

// errOtherDaemon says why an action in the container of a job has no services.
var errOtherDaemon = errors.New("the docker daemon is not the one that runs the container of the job")

// besideJob is servicesPort in the container of a job. If the same daemon runs that, it does not have our program's
// file, and the action gets the network of the job's container, with the job's services and the port in it.
func (x *running) besideJob(ctx context.Context, docker string, env map[string]string) *servicesPort {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	const short = 12 // digits of an id, which are the name of a container's machine
	name, err := os.Hostname()
	var out beginning
	if err == nil && len(name) == short {
		_ = x.call.Tidy(ctx, proc.Command{ // a failure gives no id
			Argv: []string{docker, "container", "inspect", "--format", "{{.Id}}", name},
			Env:  lines(env), Dir: x.work(), Visible: x.work(), Stdout: &out, Stderr: &beginning{},
		})
	}
	id := strings.TrimSpace(string(out.text))
	if !containerID().MatchString(id) || !strings.HasPrefix(id, name) {
		if x.call.Services().URL != "" {
			x.warnOfServices(errOtherDaemon)
		}
		return nil
	}
	text := "the docker daemon does not have the files of the job's container: the outputs of the action are lost"
	if ofContainer(x.work()) {
		text += ", and its workspace is empty"
	}
	addWarning(x.now, text)
	return &servicesPort{network: "container:" + id}
}

// volume returns the flags that mount a directory of this machine in the container of the action. A daemon that does
// not have it would make it: then it is a volume, which ends with the container.
func (p *servicesPort) volume(dir, inside string) []string {
	if p != nil && p.network != "" && ofContainer(dir) {
		return []string{"--volume", inside}
	}
	return []string{"--volume", dir + ":" + inside}
}

// askProgram asks for the program of an image.
func (x *running) askProgram(
	ctx context.Context, docker, image string, env map[string]string, p *servicesPort,
) error {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	var out beginning
	_ = x.call.Tidy(ctx, proc.Command{ // a failure gives no text
		Argv: []string{docker, "image", "inspect", "--format", "{{json .Config.Entrypoint}} {{json .Config.Cmd}}", image},
		Env:  lines(env), Dir: x.work(), Visible: x.work(), Stdout: &out, Stderr: &beginning{},
	})
	in := json.NewDecoder(bytes.NewReader(out.text))
	err := in.Decode(&p.entrypoint)
	if err == nil {
		err = in.Decode(&p.argv)
	}
	if err != nil {
		return fmt.Errorf("ask for the program of the image: %w", err)
	}
	return nil
}

// around returns flags of docker run, and the entrypoint and arguments by which our program runs those of the action.
// Without a port or a program these stay as they are.
func (p *servicesPort) around(entrypoint string, args []string) (flags []string, _ string, _ []string) {
	switch {
	case p == nil:
		return nil, entrypoint, args
	case p.network != "":
		return []string{"--network", p.network}, entrypoint, args
	}
	own, rest := p.entrypoint, p.argv
	if entrypoint != "" {
		own, rest = []string{entrypoint}, nil // as docker run has it
	}
	if len(args) > 0 {
		rest = args
	}
	if len(own)+len(rest) == 0 {
		return nil, entrypoint, args // docker says it
	}
	before := []string{"steps", "services", "--listen", p.address, "--socket", inSocket, "--"}
	return []string{"--volume", p.program + ":" + inProgram + ":ro", "--volume", p.socket + ":" + inSocket},
		inProgram, append(append(before, own...), rest...)
}

// close ends the port. The container has ended.
func (p *servicesPort) close() {
	if p != nil && p.door != nil {
		p.door.Close()
	}
}

package action

import (
	"bytes"
	"context"
	"encoding/json"
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
	if !ok {
		return nil
	}
	p := &servicesPort{address: address, socket: x.call.Path(f.name + ".sock")}
	var err error
	if p.program, err = os.Executable(); err == nil {
		if strings.HasPrefix(p.program, wire.ContainerHome+"/") {
			return nil // the daemon does not have the files of the container in which the job runs
		}
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
		addWarning(x.now, fmt.Sprintf("the action has no services for artifacts and caches: %v", err))
		return nil
	}
	return p
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
	if p == nil {
		return nil, entrypoint, args
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
	if p != nil {
		p.door.Close()
	}
}

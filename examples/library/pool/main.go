// Command pool runs a command on several machines at once, twice on each, over one SSH connection per machine.
//
//	go run ./examples/library/pool user@192.0.2.7:22 user@192.0.2.8:22
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/pool"
)

func main() {
	ctx := context.Background()
	p := pool.New(pool.Config[*mux.Conn]{Dial: dial})
	var wg sync.WaitGroup
	for _, machine := range append(os.Args[1:], os.Args[1:]...) {
		wg.Go(func() {
			out, err := run(ctx, p, machine, "uname -sm")
			if err != nil {
				log.Printf("%s: %v", machine, err)
				return
			}
			fmt.Printf("%s: %s", machine, out)
		})
	}
	wg.Wait()
	if err := p.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
}

// run runs a command on a machine, over the connection that all callers share.
func run(ctx context.Context, p *pool.Pool[*mux.Conn], machine, line string) (out []byte, err error) {
	lease, err := p.Acquire(ctx, pool.Key(machine))
	if err != nil {
		return nil, err
	}
	defer lease.Release()
	process, err := lease.Conn().Start(ctx, mux.Command{Line: line, Stderr: os.Stderr})
	if err != nil {
		return nil, err
	}
	defer process.Close()
	if out, err = io.ReadAll(process); err != nil {
		return out, err
	}
	return out, process.Wait(ctx)
}

// dial connects to user@host:port with the user's key, if known_hosts lists the machine.
func dial(ctx context.Context, key pool.Key) (*mux.Conn, error) {
	user, addr, _ := strings.Cut(string(key), "@")
	dir := filepath.Join(os.Getenv("HOME"), ".ssh")
	identity, err := login.KeyFile(filepath.Join(dir, "id_ed25519"))
	if err != nil {
		return nil, err
	}
	hosts, err := login.KnownHosts(filepath.Join(dir, "known_hosts"))
	if err != nil {
		return nil, err
	}
	return mux.Dial(ctx, addr, &mux.Config{User: user, Auth: []login.Auth{identity}, HostKeys: hosts})
}

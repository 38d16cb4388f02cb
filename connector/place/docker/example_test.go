package docker_test

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/place/docker"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// One job in a container of the Docker daemon of this machine.
func Example() {
	end, err := program.LoadBinary("bin/stepmux-vm-linux-amd64") // runs in the container, which needs no stepmux
	if err != nil {
		panic(err)
	}
	daemon := new(docker.Daemon) // one for each daemon, kept for all its builds
	ctx := context.Background()
	box, err := docker.Start(ctx, docker.Config{
		Config: place.Config{BuildID: "job-4711", Programs: []*program.Binary{end}, Log: os.Stderr},
		Dial: func(ctx context.Context) (net.Conn, error) {
			return docker.Address{}.Dial(ctx, new(net.Dialer).DialContext)
		}, Daemon: daemon, Spec: docker.Spec{Spec: place.Spec{Image: "golang:1.26"}},
	})
	if err != nil {
		panic(err)
	}
	defer box.Close(ctx) // removes the container
	cfg := connector.Config{BuildID: "job-4711", Log: os.Stderr}
	box.Configure(&cfg)
	c, err := connector.New(cfg)
	if err != nil {
		panic(err)
	}
	defer c.Close(ctx) // before the container's end
	if _, err := c.Connect(ctx); err != nil {
		panic(err)
	}
	job := connector.Job{
		Job: &stepmuxv1.Job{Script: "set -e\ngo version\n", PassEnv: []string{"all"}},
	} // with the image's environment
	result, err := c.Execute(ctx, job, os.Stdout)
	if err != nil {
		panic(err)
	}
	fmt.Println(result.Status, result.ExitCode, result.Message)
}

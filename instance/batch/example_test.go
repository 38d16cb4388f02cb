package batch_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/batch"
	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// Many builds of one script, each with a log of its own. They start in their order, as slots become free.
func Example() {
	var provider *instance.Provider // as in the example of package instance
	var builds []batch.Build
	for n := range 100 {
		id := fmt.Sprintf("job-4711-%d", n)
		log, err := os.Create(id + ".log")
		if err != nil {
			panic(err)
		}
		builds = append(builds, batch.Build{ // Run closes the log
			ID: id, Log: log, Job: connector.Job{Job: &stepmuxv1.Job{
				Script: "set -e\nmake test\n", Env: map[string]string{"SHARD": fmt.Sprint(n)},
			}},
		})
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt) // Ctrl-C cancels the builds, with their grace
	defer stop()
	abort := context.Background() // its end would cut them short
	for _, r := range batch.Run(ctx, abort, provider, batch.Batch{Builds: builds, Timeout: time.Hour, MaxFailures: 10}) {
		if r.Err != nil {
			fmt.Println(r.Build, r.Instance, r.Err)
		}
	}
}

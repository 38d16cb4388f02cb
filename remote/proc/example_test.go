package proc_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/stepmux/stepmux/remote/proc"
)

// The first line of main, or of TestMain, is proc.Main().
func Example() {
	ctx := context.Background()
	p, err := proc.Start(ctx, proc.Command{
		Argv:   []string{"sh", "-c", "trap 'echo bye; exit 3' TERM; kill $$"},
		Dir:    "/",
		Env:    []string{"PATH=/usr/bin:/bin"},
		Stdout: os.Stdout,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close() // takes along whatever it has left in the background
	defer context.AfterFunc(ctx, func() { p.Stop(10 * time.Second) })()
	exit, err := p.Wait(context.WithoutCancel(ctx))
	fmt.Println(exit, err)
	// Output:
	// bye
	// exit status 3 <nil>
}

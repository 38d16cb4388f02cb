package joblog_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/stepmux/stepmux/remote/job/joblog"
)

func Example() {
	dir, err := os.MkdirTemp("", "joblog")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	log := joblog.New(filepath.Join(dir, "stdout"), 1<<20)
	defer log.Remove()
	go func() {
		defer log.Close()
		fmt.Fprint(log, "hello ")
		fmt.Fprint(log, "world\n")
	}()
	buf := make([]byte, 64<<10)
	for off := int64(len("hello ")); ; {
		n, err := log.ReadAt(context.Background(), buf, off)
		if err != nil { // io.EOF
			break
		}
		fmt.Printf("%s", buf[:n])
		off += int64(n)
	}
	// Output: world
}

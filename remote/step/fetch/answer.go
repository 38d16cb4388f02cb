package fetch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/step/component"
)

// Answer fetches one step for a [component.Fetcher] in another process, at the other end of in and out. It keeps the
// component in the cache until in ends. The end of in also ends a fetch that is under way.
func Answer(ctx context.Context, in *os.File, out io.Writer) error {
	line, err := bufio.NewReader(io.LimitReader(in, component.MaxMessage)).ReadBytes('\n')
	if errors.Is(err, io.EOF) {
		return nil // the fetch was cancelled
	}
	var request component.Request
	if err == nil {
		err = json.Unmarshal(line, &request)
	}
	ref := &pb.Reference{}
	if err == nil {
		err = proto.Unmarshal(request.Reference, ref)
	}
	if err != nil {
		return fmt.Errorf("read the request of a step runner: %w", err)
	}
	if request.Isolated {
		if err := os.Setenv("PATH", safePath(os.Getenv("PATH"))); err != nil {
			return err
		}
	}
	ctx, stop, err := pipe.Leash(ctx, in)
	if err != nil {
		return err
	}
	defer stop()
	cfg := Config{Dir: request.Dir, Mirrors: request.Mirrors}
	if request.Open {
		cfg.archive = os.NewFile(component.ArchiveFile, "archive") // the fetch closes it
	}
	store, err := New(cfg)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // always nil
	c, err := store.Fetch(ctx, ref, request.Credentials)
	if err != nil {
		failed, system := errors.AsType[*component.SystemError](err)
		return json.NewEncoder(out).Encode(component.Answer{
			Error: err.Error(), System: system, Server: system && failed.Server,
		})
	}
	defer c.Release()
	if err := json.NewEncoder(out).Encode(component.AnswerOf(c)); err != nil {
		return err
	}
	<-ctx.Done() // the other process uses the component
	return nil
}

// safePath returns the directories of path, a PATH, into which no job of this user can put a program: this process is
// outside the isolation of jobs, and PATH often begins with ~/.local/bin. Root's jobs could change every directory.
func safePath(path string) string {
	if os.Geteuid() == 0 {
		return path
	}
	var safe []string
	for _, dir := range filepath.SplitList(path) {
		if real, err := filepath.EvalSymlinks(dir); err == nil && filepath.IsAbs(real) && isForeign(real) {
			safe = append(safe, real)
		}
	}
	return strings.Join(safe, string(filepath.ListSeparator))
}

// isForeign reports whether this user can change neither the directory dir nor a directory above it.
func isForeign(dir string) bool {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil || int(st.Uid) == os.Geteuid() || unix.Access(dir, unix.W_OK) == nil {
		return false
	}
	return dir == "/" || isForeign(filepath.Dir(dir))
}

package fetch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

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
		return json.NewEncoder(out).Encode(component.Answer{Error: err.Error()})
	}
	defer c.Release()
	if err := json.NewEncoder(out).Encode(component.AnswerOf(c)); err != nil {
		return err
	}
	<-ctx.Done() // the other process uses the component
	return nil
}

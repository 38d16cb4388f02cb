package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/standalone"
)

// projectPiece is the size of the pieces in which a project is sent to a manager.
const projectPiece = 256 << 10

// keepProject uploads a project to a manager. Without a project it does nothing.
func keepProject(ctx context.Context, m pb.ManagerClient, p *packed) error {
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := m.KeepProject(ctx)
	if err != nil {
		return err
	}
	_ = stream.Send(&pb.KeepProjectRequest{Digest: p.Digest, Size: p.Size}) // Recv returns the error
	resp, err := stream.Recv()
	if err != nil || resp.GetWanted() == 0 {
		return err
	}
	archive, err := p.Open(ctx)
	if err != nil {
		return err
	}
	for left := p.Size; left > 0; {
		data := make([]byte, min(projectPiece, left)) // a new slice each time: the stream may keep it
		if _, err := io.ReadFull(archive, data); err != nil {
			return fmt.Errorf("read the project's archive: %w", err)
		}
		if stream.Send(&pb.KeepProjectRequest{Data: data}) != nil {
			break // Recv returns the reason
		}
		left -= int64(len(data))
	}
	_, err = stream.Recv()
	return err
}

func newArtifactsCommand() *cobra.Command {
	var f managerFlag
	cmd := &cobra.Command{
		Use:   "artifacts ID DIR",
		Short: "Download the artifacts of a manager's build",
		Long: `Get the artifacts of a build of a stepmux manager, and unpack them in DIR, which is made if it is missing.
Files of the same name there are replaced. An archive with a file or a link that would be outside of DIR is refused. ID
may be PIPELINE/JOB, the latest build of a job of a pipeline.

` + managerExitHelp,
		Args: arguments("ID", "DIR"),
	}
	f.register(cmd.Flags())
	has := func(b *pb.Build) bool { return b.GetResult().GetArtifacts() > 0 }
	cmd.ValidArgsFunction = first(f.completeBuilds(has), directories)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return f.use(cmd, func(ctx context.Context, m pb.ManagerClient) error {
			id, err := buildNamed(ctx, m, args[0], false)
			if err != nil {
				return err
			}
			n, err := getArtifacts(ctx, m, id, args[1])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s in %s\n", plural.Count(n, "artifact"), args[1])
			return err
		})
	}
	return cmd
}

// getArtifacts downloads the artifacts of a build and unpacks them in a directory.
func getArtifacts(ctx context.Context, m pb.ManagerClient, id, dir string) (int, error) {
	file, err := os.CreateTemp("", "stepmux-artifacts-")
	if err != nil {
		return 0, err
	}
	defer file.Close()
	if err := os.Remove(file.Name()); err != nil {
		return 0, err
	}
	if err := getFile(ctx, m, &pb.ArtifactsRequest{Id: id}, file); err != nil {
		return 0, err
	}
	return unpackArtifacts(ctx, file, dir)
}

// getFile writes a file that the manager has kept of a build to a Writer.
func getFile(ctx context.Context, m pb.ManagerClient, req *pb.ArtifactsRequest, to io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := m.Artifacts(ctx, req)
	if err != nil {
		return err
	}
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			_, err = to.Write(msg.GetData())
		}
		if err != nil {
			return err
		}
	}
}

func newTraceGetCommand() *cobra.Command {
	var f managerFlag
	cmd := &cobra.Command{
		Use:   "get [flags] ID FILE",
		Short: "Get the trace of a manager's build",
		Long: `Get the trace of a build of a stepmux manager that was submitted with --trace, and write it to FILE, which
is replaced if it is there.

` + managerExitHelp,
		Example: `  stepmux trace get ID trace.json
  stepmux trace export trace.json --format slsa-v1 > provenance.json`,
		Args: arguments("ID", "FILE"),
	}
	f.register(cmd.Flags())
	has := func(b *pb.Build) bool { return b.GetResult().GetTrace() > 0 }
	cmd.ValidArgsFunction = first(f.completeBuilds(has), cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := standalone.CheckOutputFile(args[1]); err != nil {
			return err
		}
		return f.use(cmd, func(ctx context.Context, m pb.ManagerClient) error {
			file := &traceFile{path: args[1]}
			return file.end(getFile(ctx, m, &pb.ArtifactsRequest{Id: args[0], Trace: true}, file))
		})
	}
	return cmd
}

package network

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/remote/archive"
	"github.com/stepmux/stepmux/remote/commands"
)

// unpackProject unpacks the archive on standard input into the working directory.
func unpackProject(fl *pflag.FlagSet) commands.Runner {
	outside := outsideLinks(fl)
	return func(ctx context.Context, _ []string) (int, error) {
		_, err := archive.Extract(ctx, os.Stdin, ".", archive.Bounds{OutsideLinks: *outside})
		return 0, err
	}
}

// outsideLinks defines the flag for the archive of a cache.
func outsideLinks(fl *pflag.FlagSet) *bool {
	return fl.Bool("outside-links", false, "keep symbolic links that lead out of the directory")
}

// packArtifacts packs the files that match its arguments to standard output. Without files it writes nothing.
func packArtifacts(fl *pflag.FlagSet) commands.Runner {
	outside := outsideLinks(fl)
	untracked := fl.Bool("untracked", false, "add all files that are not in the archive on standard input")
	return func(ctx context.Context, args []string) (int, error) {
		dir, err := os.Getwd()
		if err != nil {
			return 0, err
		}
		var tracked map[string]bool
		if *untracked {
			if tracked, err = archive.Names(ctx, os.Stdin); err != nil {
				return 0, fmt.Errorf("read the names of the files of the project: %w", err)
			}
		}
		files, err := archive.Find(ctx, archive.Selection{
			Dir: dir, Paths: args, OnlyInside: !*outside, Untracked: *untracked, Tracked: tracked,
			Info: func(string) {}, Warn: func(text string) { fmt.Fprintln(os.Stderr, text) },
		})
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if err != nil { // the job has taken the right to read it away: that is no failure of the job
			fmt.Fprintln(os.Stderr, err)
			return 0, nil
		}
		defer files.Close()
		if len(files.Names()) == 0 {
			return 0, nil
		}
		return 0, files.Write(ctx, os.Stdout, archive.TarZstd, "fast")
	}
}

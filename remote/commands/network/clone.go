package network

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/remote/clone"
	"github.com/stepmux/stepmux/remote/commands"
	"github.com/stepmux/stepmux/remote/pipe"
	"github.com/stepmux/stepmux/remote/transfer"
)

// passwordVariable is the environment variable that has the password of a repository.
const passwordVariable = "CI_JOB_TOKEN"

// exitCloneFailed is the exit code of a clone that failed by the fault of its arguments or of the repository.
const exitCloneFailed = 1

func cloneRepository(fl *pflag.FlagSet) commands.Runner {
	cfg := clone.Config{Output: os.Stderr}
	fl.StringVar(&cfg.URL, "url", "", "the repository, by HTTPS or HTTP (required)")
	fl.StringVar(&cfg.Revision, "revision", "HEAD", "a commit, a branch or a tag")
	fl.StringArrayVar(&cfg.Refspecs, "refspec", nil, "references to fetch, too, as git writes them")
	fl.StringVar(&cfg.Dir, "dir", ".", "directory of the files")
	fl.IntVar(&cfg.Depth, "depth", 0, "commits of the history to fetch; 0 for all")
	fl.BoolVar(&cfg.Clean, "clean", true, "remove files of an earlier clone's directory that are not in the repository")
	submodules := fl.String("submodules", string(clone.None), "none, normal or recursive")
	fl.StringVar(&cfg.User, "user", "gitlab-ci-token", "user of the password in "+passwordVariable)
	output := fl.String("output-file", "", "append the commit to this file, as the output commit of a step")
	return func(ctx context.Context, _ []string) (int, error) {
		if err := commands.Required(fl, "url"); err != nil {
			return 0, err
		}
		if err := pipe.Conceal(); err != nil { // the password is in the environment
			return 0, err
		}
		cfg.Submodules, cfg.Password = clone.Submodules(*submodules), os.Getenv(passwordVariable)
		for _, kv := range os.Environ() {
			if !strings.HasPrefix(kv, passwordVariable+"=") {
				cfg.Env = append(cfg.Env, kv)
			}
		}
		commit, err := clone.Clone(ctx, cfg)
		if err == nil && *output != "" {
			err = appendOutput(*output, "commit", commit)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "stepmux: clone %s: %v\n", transfer.Plain(cfg.URL), err)
			code := exitCloneFailed
			if clone.IsFault(err) {
				code = commands.ExitFailed
			}
			return cmp.Or(endsignal.Code(ctx), code), nil
		}
		if commit != "" {
			fmt.Fprintf(os.Stderr, "checked out %s\n", commit)
		}
		return 0, nil
	}
}

// appendOutput appends an output to the output file of a step.
func appendOutput(file, name, value string) error {
	line, err := json.Marshal(map[string]string{"name": name, "value": value})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

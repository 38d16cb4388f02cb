package main

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/instance/control"
	pb "github.com/stepmux/stepmux/instance/manager/managerv1"
	"github.com/stepmux/stepmux/internal/termtext"
)

// valuesKey is the annotation of a flag that lists its possible values.
const valuesKey = "values"

const (
	// completionTime bounds the wait of a completion for a manager or a run.
	completionTime = time.Second
	// maxCompletions bounds the number of builds that a completion requests.
	maxCompletions = 200
)

// filesAsArguments matches the usage of a command whose arguments are files.
var filesAsArguments = regexp.MustCompile(`\b(FILE|TRACE|ENVELOPE|OLD|NEW)\b`)

// addCompletions sets the shell completion of all commands and flags that do not have one. Whether values, files,
// directories or nothing can follow is derived from their help texts.
func addCompletions(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		complete := cobra.NoFileCompletions
		kind, text := pflag.UnquoteUsage(f)
		if values := f.Annotations[valuesKey]; values != nil {
			complete = oneOf(values)
		} else {
			switch kind {
			case "DIR", "directory":
				complete = directories
			case "string", "strings", "stringArray":
				dir, file := strings.Index(text, "directory"), strings.Index(text, "file")
				if dir < 0 || file >= 0 && file < dir {
					return
				}
				complete = directories
			case "FILE", "command", "program":
				return // files
			}
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // fails if the flag has its own
	})
	if cmd.ValidArgsFunction == nil && !cmd.DisableFlagParsing && !filesAsArguments.MatchString(cmd.Use) {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, c := range cmd.Commands() {
		addCompletions(c)
	}
}

// oneOf completes a word with values. No space follows values such as "command:", which need more text.
func oneOf(values []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		directive := cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		var found []cobra.Completion
		for _, value := range values {
			if !strings.HasPrefix(value, word) {
				continue
			}
			if found = append(found, value); !strings.HasSuffix(value, ":") {
				directive = cobra.ShellCompDirectiveNoFileComp
			}
		}
		return found, directive
	}
}

// directories completes a word with directories.
func directories(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// completing returns a completion with those words of list that begin like the word and are not arguments yet. A
// description may follow a word, after a tab. The context of the command ends after completionTime.
func completing(list func(cmd *cobra.Command, args []string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		cmd.SetContext(ctx)
		var found []cobra.Completion
		for _, text := range list(cmd, args) {
			name, _, _ := strings.Cut(text, "\t")
			if strings.HasPrefix(name, word) && !slices.Contains(args, name) {
				found = append(found, text)
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// first returns a completion for the first argument. rest completes the other arguments.
func first(complete, rest cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return rest(cmd, args, word)
		}
		return complete(cmd, args, word)
	}
}

// lister returns words for a completion.
type lister func(ctx context.Context, m pb.ManagerClient) (words []string, err error)

// completeBy completes words of lists of a manager.
func (f *managerFlag) completeBy(lists ...lister) cobra.CompletionFunc {
	return completing(func(cmd *cobra.Command, _ []string) (words []string) {
		_ = f.use(cmd, func(ctx context.Context, m pb.ManagerClient) error { // without an answer there are no completions
			for _, list := range lists {
				more, err := list(ctx, m)
				if err != nil {
					return err
				}
				words = append(words, more...)
			}
			return nil
		})
		return words
	})
}

// builds lists the IDs of a manager's builds for which wanted returns true.
func builds(wanted func(*pb.Build) bool) lister {
	return func(ctx context.Context, m pb.ManagerClient) (ids []string, err error) {
		list, err := m.List(ctx, &pb.ListRequest{Limit: maxCompletions})
		for _, b := range list.GetBuilds() {
			if wanted(b) {
				ids = append(ids, b.GetId()+"\t"+b.GetPhase().String()+" "+termtext.Line(b.GetStepsFile()))
			}
		}
		return ids, err
	}
}

// completeBuilds completes the IDs of a manager's builds for which wanted returns true.
func (f *managerFlag) completeBuilds(wanted func(*pb.Build) bool) cobra.CompletionFunc {
	return f.completeBy(builds(wanted))
}

// completeVMs completes the IDs of a manager's VMs.
func (f *managerFlag) completeVMs() cobra.CompletionFunc {
	return completing(func(cmd *cobra.Command, _ []string) (ids []string) {
		_ = f.use(cmd, func(ctx context.Context, m pb.ManagerClient) (err error) { // as above
			ids, err = vmIDs(ctx, m)
			return err
		})
		return ids
	})
}

// vmIDs returns the IDs of the VMs of a run or a manager, with their states.
func vmIDs(ctx context.Context, of pb.ManagerClient) (ids []string, err error) {
	status, err := control.Ask(ctx, of)
	for _, vm := range status.Instances {
		ids = append(ids, vm.ID+"\t"+vm.State)
	}
	return ids, err
}

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/connector"
	"github.com/stepmux/stepmux/connector/program"
	"github.com/stepmux/stepmux/instance"
	"github.com/stepmux/stepmux/instance/doctor"
	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/plural"
	"github.com/stepmux/stepmux/internal/tail"
	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/mux"
	"github.com/stepmux/stepmux/remote/commands/network"
)

// maxCacheReport bounds the report of a VM, in bytes.
const maxCacheReport = 16 << 20

// maxCacheObjects bounds the objects in it, which take more memory than their text.
const maxCacheObjects = 200_000

// cacheFlags are the flags of a command below cache.
type cacheFlags struct {
	vmFlags
	bootstrapFlags
	verb   string
	output string
	dir    string
	unused time.Duration
}

// cacheReport is the report of one VM or, if Instance is empty, of this machine.
type cacheReport struct {
	Instance string `json:"instance,omitempty"`
	network.CacheReport
}

func newCacheCommand() *cobra.Command {
	return withCommands(&cobra.Command{
		Use:   "cache",
		Short: "List, check and prune the cache of fetched steps, on this machine or on VMs",
	},
		newCacheVerb("list", "List the components in the cache", `List the components in the cache, the least recently used
first, with their sizes and the places they were fetched from.`),
		newCacheVerb("prune", "Remove components that no job uses", `Remove the components that no job uses, and files that
killed processes have left. Jobs may run at the same time. Directories of a component are read-only, so only root can
remove them with rm -rf. After prune, while no job runs, you can remove the cache with rm -rf.`),
		newCacheVerb("verify", "Compare components with their digests", `Compare the files of all components with their
digests, list the components that were changed, and remove them, except those that a job uses.`),
	)
}

func newCacheVerb(verb, short, long string) *cobra.Command {
	f := cacheFlags{verb: verb}
	cmd := &cobra.Command{
		Use:   verb,
		Short: short,
		Long: long + `

With --instance or --inventory it works on the caches of VMs, with the step runner there and as the user of the builds.
With --bootstrap it uses the step runner that 'stepmux run --bootstrap' has uploaded.

` + vmHelp + `

Exit codes:
  0        done
  1        verify: a component was changed
  2        wrong usage
  3        a cache or a VM failed
  129 130 143  ended by a signal: hang-up, Ctrl-C (SIGINT), SIGTERM`,
		Example: "  stepmux cache " + verb + "\n  stepmux cache " + verb + " --inventory fleet.yml",
		Args:    arguments(),
		RunE:    f.run,
	}
	fl := cmd.Flags()
	f.vmFlags.register(fl)
	f.bootstrapFlags.register(fl)
	outputFlag(fl, &f.output, "text, or json for an object per cache")
	fl.StringVar(&f.dir, "cache-dir", "", "directory of the cache (default stepmux-steps in the user's cache directory)")
	if verb == "prune" {
		timeFlag(fl, &f.unused, "unused-for", "keep components that were used within this time, such as 24h")
	}
	grouped(fl, fileGroup)
	return cmd
}

func (f *cacheFlags) run(cmd *cobra.Command, _ []string) error {
	ctx, stop := endsignal.Until(cmd.Context())
	defer stop()
	reports, err := f.reports(ctx)
	if err != nil {
		return err
	}
	code := 0
	for _, r := range reports {
		if f.verb == "verify" && len(r.Components) > 0 {
			code = max(code, 1)
		}
		if r.Error != "" {
			code = exitSystem
		}
		if f.output == "json" {
			err = writeJSON(cmd.OutOrStdout(), r)
		} else {
			err = f.writeText(cmd.OutOrStdout(), cmd.ErrOrStderr(), r)
		}
		if err != nil {
			return systemError(err)
		}
	}
	return withCode(cmp.Or(endsignal.Code(ctx), code), nil)
}

// reports returns the reports of the VMs or, if the flags name no VM, of this machine.
func (f *cacheFlags) reports(ctx context.Context) ([]cacheReport, error) {
	if len(f.instances) > 0 || f.inventory != "" {
		bootstrap, err := f.bootstraps()
		if err != nil {
			return nil, err
		}
		return onEach(ctx, &f.vmFlags, func(p *instance.Provider, in instance.Instance, _ func(func())) cacheReport {
			r, err := f.onVM(ctx, p, in, bootstrap)
			if err != nil {
				r.Error = termtext.Short(err.Error(), 1000)
			}
			r.Instance = in.ID
			return r
		})
	}
	if err := f.needsVM("bootstrap", "bootstrap-binary", "runner-command"); err != nil {
		return nil, err
	}
	return []cacheReport{{CacheReport: network.Cache(ctx, f.verb, f.dir, f.unused)}}, nil
}

// onVM runs the same command on a VM, with the step runner there.
func (f *cacheFlags) onVM(
	ctx context.Context, p *instance.Provider, in instance.Instance, bootstrap []*program.Binary,
) (r cacheReport, err error) {
	conn, err := p.Dial(ctx, in.ID, nil)
	if err != nil {
		return r, err
	}
	defer conn.Close()
	name := in.Runner
	if len(name) == 0 {
		name = connector.DefaultRunner
	}
	runner := name
	if len(bootstrap) > 0 {
		found, err := doctor.Bootstrap(ctx, conn, in, bootstrap)
		if err != nil {
			return r, err
		}
		runner, name = found.Argv(), found.Command
	}
	args := []string{"steps", "cache", f.verb}
	if f.dir != "" {
		args = append(args, "--cache-dir", f.dir)
	}
	if f.unused > 0 {
		args = append(args, "--unused-for", f.unused.String())
	}
	var stderr tail.Writer
	process, err := conn.Start(ctx, mux.Command{Argv: slices.Concat(runner, args), Stderr: &stderr})
	if err != nil {
		return r, err
	}
	defer process.Close()
	defer context.AfterFunc(ctx, func() { _ = process.Close() })()
	_ = process.CloseWrite() // an error means that it has ended
	data, readErr := io.ReadAll(io.LimitReader(process, maxCacheReport+1))
	if readErr == nil && len(data) > maxCacheReport {
		return r, fmt.Errorf("the cache's report has more than %d MiB", maxCacheReport>>20)
	}
	waitErr := process.Wait(ctx)
	data = bytes.TrimSpace(data)
	data = data[bytes.LastIndexByte(data, '\n')+1:] // a login shell may have printed lines before
	if n := bytes.Count(data, []byte("{")); n > maxCacheObjects {
		return r, fmt.Errorf("the cache's report has %d components, more than %d", n, maxCacheObjects)
	}
	if json.Unmarshal(data, &r) == nil {
		return r, nil // the exit code adds nothing to the report
	}
	return cacheReport{}, fmt.Errorf("%s: %w (is it a stepmux of this version? --runner-command names a program, "+
		"--bootstrap finds one that was uploaded, or uploads it)",
		cmp.Or(stderr.String(), strings.Join(slices.Concat(name, args), " ")),
		cmp.Or(readErr, waitErr, errors.New("the program prints no report")))
}

// writeText writes r. Its texts may come from a VM, so they are untrusted.
func (f *cacheFlags) writeText(out, problems io.Writer, r cacheReport) error {
	where := ""
	if r.Instance != "" {
		where = r.Instance + ": "
	}
	if r.Error != "" {
		fmt.Fprintf(problems, "stepmux: %s%s\n", where, termtext.Short(r.Error, 1000))
		if len(r.Components) == 0 {
			return nil // the cache is unknown, not empty
		}
	}
	total := 0.0
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, c := range r.Components {
		size := float64(c.Bytes)
		total += size
		used := "unknown"
		if !c.Used.IsZero() {
			used = c.Used.Local().Format("2006-01-02 15:04")
		}
		if c.InUse {
			used = "in use"
		}
		from := "of an unknown source"
		if len(c.Sources) > 0 {
			s := c.Sources[0]
			from = s.Kind + " " + s.Location + " " + cmp.Or(s.Commit, s.Digest)
		}
		if more := len(c.Sources) - 1; more > 0 {
			from += fmt.Sprintf(" and %d more", more)
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", termtext.Short(c.Tree, 19), units.BytesSize(size), used,
			termtext.Short(from, 300))
	}
	_ = t.Flush() // it writes to memory
	counted := map[string]string{"list": "in the cache", "prune": "removed", "verify": "changed"}[f.verb]
	_, err := fmt.Fprintf(out, "%s%s %s, %s\n%s", where, plural.Count(len(r.Components), "component"), counted,
		units.BytesSize(total),
		b.String())
	return err
}

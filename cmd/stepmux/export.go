package main

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/remote/standalone"
	"github.com/stepmux/stepmux/remote/standalone/provenance"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// provenanceFlags are the flags of the commands that write provenance.
type provenanceFlags struct {
	builder  string
	subjects []string
}

const builderUsage = "the `URI` of the builder, which runs the job and vouches for the provenance (default " +
	provenance.DefaultBuilder + ")"

func (f *provenanceFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.builder, "builder-id", "", builderUsage)
	fl.StringArrayVar(&f.subjects, "subject", nil,
		"the provenance is about the files that match this `GLOB`, such as dist/*.tar.gz (default the trace); repeatable")
}

// checkProvenance checks the flags of a command that writes provenance to file, if that is not empty.
func (f *provenanceFlags) checkProvenance(file string) error {
	switch {
	case file == "" && f.builder != "":
		return errors.New("--builder-id needs --provenance; name the file to write")
	case file == "" && len(f.subjects) > 0:
		return errors.New("--subject needs --provenance; name the file to write")
	case f.builder == "":
		return nil
	}
	if err := provenance.CheckBuilder(f.builder); err != nil {
		return fmt.Errorf("--builder-id: %w", err)
	}
	return nil
}

// statement returns the provenance of t, whose file is called name and is data, with subjects in dir.
func (f *provenanceFlags) statement(t *trace.Trace, name string, data []byte, dir string) ([]byte, error) {
	cfg := provenance.Config{Builder: f.builder, TraceName: name, TraceDigest: fmt.Sprintf("%x", sha256.Sum256(data))}
	if len(f.subjects) > 0 {
		var err error
		if cfg.Subjects, err = provenance.Subjects(dir, f.subjects); err != nil {
			return nil, fmt.Errorf("--subject: %w", err)
		}
	}
	return provenance.Statement(t, cfg)
}

// write writes the provenance of t to file. name is the file of the trace; if empty, trace.json.
func (f *provenanceFlags) write(file string, t *trace.Trace, name, dir string) error {
	data, err := t.Encode()
	if err != nil {
		return err
	}
	data, err = f.statement(t, cmp.Or(name, "trace.json"), data, dir)
	if err != nil {
		return err
	}
	return standalone.WriteFile(file, data)
}

type exportFlags struct {
	provenanceFlags
	format string
	out    string
	dir    string
}

func newTraceExportCommand() *cobra.Command {
	var f exportFlags
	cmd := &cobra.Command{
		Use:   "export [flags] TRACE",
		Short: "Export a trace as in-toto statements",
		Long: `Write a trace as unsigned in-toto statements: one with SLSA provenance v1 about the job, or one for each
command (link v0.3). Masked values are left out. docs/trace.md has the mapping.`,
		Example: `  stepmux trace export trace.json --format slsa-v1 --subject 'dist/*.tar.gz' > provenance.json
  stepmux trace export trace.json --format in-toto-links --out links`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fl := cmd.Flags()
	f.register(fl)
	fl.StringVar(&f.format, "format", "slsa-v1", "slsa-v1 or in-toto-links")
	fl.StringVar(&f.out, "out", "", "the file to write for slsa-v1 (default standard output), or the directory for "+
		"in-toto-links, made if missing (default the current directory)")
	fl.StringVar(&f.dir, "work-dir", ".", "the directory of the files of --subject")
	return cmd
}

func (f *exportFlags) run(cmd *cobra.Command, file string) error {
	if err := f.checkProvenance(f.format); err != nil {
		return usageError(err)
	}
	data, err := trace.ReadFile(file)
	if err != nil {
		return usageError(err)
	}
	t, err := trace.Parse(data)
	if err != nil {
		return usageError(fmt.Errorf("%s: %w", file, err))
	}
	switch f.format {
	case "slsa-v1":
		data, err = f.statement(t, filepath.Base(file), data, f.dir)
		if err != nil {
			return usageError(err)
		}
		if f.out != "" {
			err = standalone.WriteFile(f.out, data)
		} else {
			_, err = cmd.OutOrStdout().Write(data)
		}
		if err != nil {
			return systemError(err)
		}
		return nil
	case "in-toto-links":
		if f.builder != "" || len(f.subjects) > 0 {
			return usageError(errors.New("--builder-id and --subject need slsa-v1; a link is about the outputs of its " +
				"command"))
		}
		return f.links(t)
	default:
		return usageError(fmt.Errorf("--format %.40q: use slsa-v1 or in-toto-links", f.format))
	}
}

// links writes a file for each command.
func (f *exportFlags) links(t *trace.Trace) error {
	links, err := provenance.Links(t)
	if err != nil {
		return usageError(err)
	}
	dir := cmp.Or(f.out, ".")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return systemError(fmt.Errorf("make directory for links: %w", err))
	}
	for _, l := range links {
		if err := standalone.WriteFile(filepath.Join(dir, l.File), l.Data); err != nil {
			return systemError(err)
		}
	}
	return nil
}

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/crypto/ssh"

	"github.com/stepmux/stepmux/internal/sshtarget"
	"github.com/stepmux/stepmux/internal/standalone"
	"github.com/stepmux/stepmux/internal/standalone/provenance"
	"github.com/stepmux/stepmux/mux/login"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// provenanceFlags are the flags of the commands that write provenance.
type provenanceFlags struct {
	builder    string
	subjects   []string
	signKey    string
	passphrase []string // the command

	key *provenance.Key // nil without signKey, and until checkProvenance is called
}

const (
	builderUsage = "the `URI` of the builder, which runs the job and vouches for the provenance (default " +
		provenance.DefaultBuilder + ")"
	signUsage = "sign the provenance with the ed25519 or ECDSA private key in this `FILE`: the result is a DSSE envelope"
)

func (f *provenanceFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.builder, "builder-id", "", builderUsage)
	fl.StringArrayVar(&f.subjects, "subject", nil,
		"the provenance is about the files that match this `GLOB`, such as dist/*.tar.gz (default the trace); repeatable")
	fileFlag(fl, &f.signKey, "sign-key", signUsage)
	wordsFlag(fl, &f.passphrase, "passphrase-command",
		"`command` that prints the passphrase of --sign-key, the file %f; it is split into words at blanks")
}

// checkProvenance checks the flags of a command that writes provenance to file, and reads the key. An empty file
// means no provenance.
func (f *provenanceFlags) checkProvenance(ctx context.Context, file string) error {
	for _, flag := range []struct {
		name  string
		given bool
	}{{"builder-id", f.builder != ""}, {"subject", len(f.subjects) > 0}, {"sign-key", f.signKey != ""}} {
		if file == "" && flag.given {
			return fmt.Errorf("--%s needs --provenance; name the file to write", flag.name)
		}
	}
	for _, pattern := range f.subjects {
		if err := provenance.CheckPattern(pattern); err != nil {
			return fmt.Errorf("--subject: %w", err)
		}
	}
	if f.builder != "" {
		if err := provenance.CheckBuilder(f.builder); err != nil {
			return fmt.Errorf("--builder-id: %w", err)
		}
	}
	if f.signKey == "" {
		if len(f.passphrase) > 0 {
			return errors.New("--passphrase-command is for --sign-key; name the file of the key")
		}
		return nil
	}
	if err := f.readKey(ctx); err != nil {
		return sshtarget.OfFlag("--sign-key", err)
	}
	return nil
}

// readKey reads the key of --sign-key. It stays in the memory of this process.
func (f *provenanceFlags) readKey(ctx context.Context) error {
	text, err := login.ReadKeyFile(f.signKey)
	if err != nil {
		return err
	}
	f.key, err = provenance.ParsePrivateKey(text, nil)
	if missing := (*ssh.PassphraseMissingError)(nil); errors.As(err, &missing) && len(f.passphrase) > 0 {
		var secret []byte
		if secret, err = sshtarget.Passphrase(ctx, f.passphrase, f.signKey); err != nil {
			return err
		}
		f.key, err = provenance.ParsePrivateKey(text, secret)
	} else if missing != nil {
		return fmt.Errorf("%s has a passphrase: name a command that prints it with --passphrase-command", f.signKey)
	}
	if err != nil {
		return fmt.Errorf("read private key %s: %w", f.signKey, err)
	}
	return nil
}

// statement returns the provenance of t. name and data are the name and content of its file; subjects are searched in
// dir.
func (f *provenanceFlags) statement(t *trace.Trace, name string, data []byte, dir string) ([]byte, error) {
	cfg := provenance.Config{Builder: f.builder, TraceName: name, TraceDigest: fmt.Sprintf("%x", sha256.Sum256(data))}
	if len(f.subjects) > 0 {
		var err error
		if cfg.Subjects, err = provenance.Subjects(dir, f.subjects); err != nil {
			return nil, fmt.Errorf("--subject: %w", err)
		}
	}
	statement, err := provenance.Statement(t, cfg)
	if err != nil || f.key == nil {
		return statement, err
	}
	return f.key.Sign(statement)
}

// write writes the provenance of t to file. name is the file of the trace.
func (f *provenanceFlags) write(file string, t *trace.Trace, name, dir string) error {
	data, err := t.Encode()
	if err != nil {
		return err
	}
	if data, err = f.statement(t, name, data, dir); err != nil {
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
		Long: `Write a trace as in-toto statements: one with SLSA provenance v1 about the job, or one for each command (link
v0.3). Masked values are left out. With --sign-key they are signed, in DSSE envelopes; each link is then in a file
STEP.KEYID.link, as in-toto's verifiers expect. docs/trace.md has the mapping.`,
		Example: `  stepmux trace export trace.json --format slsa-v1 --subject 'dist/*.tar.gz' > provenance.json
  stepmux trace export trace.json --format in-toto-links --out links`,
		Args: arguments("TRACE"),
		RunE: f.run,
	}
	fl := cmd.Flags()
	f.register(fl)
	f.format = "slsa-v1"
	choiceFlag(fl, &f.format, "format", "slsa-v1 or in-toto-links", "slsa-v1", "in-toto-links")
	fl.StringVar(&f.out, "out", "", "the file to write for slsa-v1 (default standard output), or the directory for "+
		"in-toto-links, made if missing (default the current directory)")
	fl.StringVar(&f.dir, "work-dir", ".", "the directory of the files of --subject")
	return cmd
}

func (f *exportFlags) run(cmd *cobra.Command, args []string) error {
	file := args[0]
	if err := f.checkProvenance(cmd.Context(), f.format); err != nil {
		return err
	}
	if err := areApart([]flagFile{{"the trace", file}}, flagFile{"--out", f.out}); err != nil {
		return err
	}
	data, err := trace.ReadFile(file)
	if err != nil {
		return err
	}
	t, err := trace.Parse(data)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if f.format == "in-toto-links" {
		return f.links(t)
	}
	if data, err = f.statement(t, filepath.Base(file), data, f.dir); err != nil {
		return err
	}
	if f.out != "" {
		return systemError(standalone.WriteFile(f.out, data))
	}
	_, err = cmd.OutOrStdout().Write(data)
	return systemError(err)
}

// links writes a file for each command.
func (f *exportFlags) links(t *trace.Trace) error {
	if f.builder != "" || len(f.subjects) > 0 {
		return errors.New("--builder-id and --subject work only with slsa-v1; an in-toto link has neither")
	}
	links, err := provenance.Links(t, f.key)
	if err != nil {
		return err
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

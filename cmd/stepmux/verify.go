package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/internal/boundedfile"
	"github.com/stepmux/stepmux/internal/standalone/provenance"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// maxPublicKey bounds the file of a public key.
const maxPublicKey = 64 << 10

type verifyFlags struct {
	key, trace, dir, output string
}

func newTraceVerifyCommand() *cobra.Command {
	var f verifyFlags
	cmd := &cobra.Command{
		Use:   "verify [flags] --key FILE ENVELOPE",
		Short: "Verify signed provenance: the signed files, the key and the differences",
		Long: `Verify the signature of provenance or of a link that --sign-key has signed, and compare the files that it names
with those in --work-dir. With --trace the whole statement is compared with the trace.

Exit codes:
  0        the key has signed it, and nothing differs
  1        the key has not signed it, or something differs
  2        wrong usage, or a file that is not what it should be`,
		Example: `  stepmux trace verify --key builder.pub provenance.json
  stepmux trace verify --key builder.pub --trace trace.json provenance.json`,
		Args: arguments("ENVELOPE"),
		RunE: f.run,
	}
	fl := cmd.Flags()
	fl.StringVar(&f.key, "key", "", "file with the public key, in PEM form or as OpenSSH's .pub")
	fileFlag(fl, &f.trace, "trace", "`FILE` with the trace that the provenance was made from")
	fl.StringVar(&f.dir, "work-dir", ".", "the directory of the files that the provenance is about")
	outputFlag(fl, &f.output, "text or json")
	return cmd
}

func (f *verifyFlags) run(cmd *cobra.Command, args []string) error {
	if f.key == "" {
		return errors.New("--key is missing; name the file of the public key")
	}
	text, err := boundedfile.Read(f.key, maxPublicKey)
	if err != nil {
		return fmt.Errorf("--key: %w", err)
	}
	key, err := provenance.ParsePublicKey(text)
	if err != nil {
		return fmt.Errorf("--key: %s: %w", f.key, err)
	}
	envelope, err := boundedfile.Read(args[0], trace.MaxSize)
	if err != nil {
		return err
	}
	var data []byte
	if f.trace != "" {
		if data, err = trace.ReadFile(f.trace); err != nil {
			return fmt.Errorf("--trace: %w", err)
		}
	}
	signed, err := key.Verify(envelope, f.dir, data)
	if err != nil {
		err = fmt.Errorf("%s: %w", args[0], err)
		if _, unsigned := errors.AsType[*provenance.SignatureError](err); unsigned {
			return withCode(exitDifferent, err)
		}
		return err
	}
	out := cmd.OutOrStdout()
	if f.output == "json" {
		err = writeJSON(out, struct {
			Same bool `json:"same"`
			*provenance.Signed
		}{signed.Same(), signed})
	} else {
		err = signed.Show(out)
	}
	if err != nil {
		return systemError(err)
	}
	if !signed.Same() {
		return withCode(exitDifferent, nil)
	}
	return nil
}

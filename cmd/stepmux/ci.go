package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/internal/buildinfo"
	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/internal/standalone"
)

type ciFlags struct {
	jobFlags
	settingFlags
	port      int
	tokenFile string
}

func newCICommand() *cobra.Command {
	var f ciFlags
	cmd := &cobra.Command{
		Use:   "ci [flags]",
		Short: "Run the steps in the environment variable STEPS, or serve gRPC on a port",
		Long: `Run the steps in the environment variable STEPS: a list of steps, or a document with the list below run:.
This command is for the script of a CI job. Expressions see the environment as job variables (vars.X, job.X); steps get
a small environment, and the variables that they ask for. The job runs in CI_PROJECT_DIR or, if that is not set,
in the current directory. It writes its trace to trace.json there, or to --output-file; an empty name means no trace.
The known tokens of CI jobs are masked, and the variables of --mask. The variables in the files of --env-file come
before those of the environment, STEPS and CI_PROJECT_DIR too.

With --port it serves the step service (gRPC) on 127.0.0.1 until SIGINT, SIGTERM or SIGHUP. Calls need the metadata
"authorization: Bearer TOKEN". The token is the first line of --token-file, else the environment variable
STEPMUX_TOKEN, else a new one, which is printed on standard error.

` + jobExitHelp,
		Example: `  STEPS="$(cat steps.yml)" stepmux ci
  stepmux ci --env-file job.env --config ci.yml
  stepmux ci --port 8080`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return fmt.Errorf("ci takes no FILE, its steps are in the environment variable STEPS; to run a file: "+
				"stepmux local %s", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.apply(cmd); err != nil {
				return err
			}
			if cmd.Flags().Changed("port") {
				return f.serve(cmd)
			}
			return f.run(cmd)
		},
	}
	fl := cmd.Flags()
	f.jobFlags.register(fl)
	f.settingFlags.register(fl)
	fl.IntVar(&f.port, "port", 0, "serve gRPC on this port of 127.0.0.1; 0 picks a free one")
	fl.StringVar(&f.tokenFile, "token-file", "", "file whose first line is the token of --port")
	grouped(fl, jobGroup)
	for _, other := range []string{
		"output", "output-file", "report", "provenance", "builder-id", "subject", "sign-key", "passphrase-command", "mask",
		"timeout", "env-file", "strict-scripts",
	} {
		cmd.MarkFlagsMutuallyExclusive("port", other)
	}
	return cmd
}

func (f *ciFlags) run(cmd *cobra.Command) error {
	if f.tokenFile != "" {
		return errors.New("--token-file is for --port")
	}
	if !cmd.Flags().Changed("output-file") {
		f.defaultTrace = "trace.json"
	}
	return f.runJob(cmd, func() (standalone.Source, error) {
		vars, err := f.variables()
		if err != nil {
			return standalone.Source{}, err
		}
		getenv := func(name string) string {
			for _, entry := range vars {
				if value, ok := strings.CutPrefix(entry, name+"="); ok {
					return value
				}
			}
			return os.Getenv(name)
		}
		text := getenv(standalone.StepsVariable)
		if strings.TrimSpace(text) == "" {
			return standalone.Source{}, errors.New(`the environment variable STEPS is not set; it holds the steps to run, as ` +
				`in STEPS="$(cat steps.yml)" stepmux ci`)
		}
		f.workDir = cmp.Or(f.workDir, getenv("CI_PROJECT_DIR"))
		src := standalone.Source{Name: standalone.StepsVariable, Text: []byte(text), Format: standalone.Steps}
		src.Vars, err = standalone.EnvironmentVars(append(vars, os.Environ()...), f.masked) // the first value counts
		return src, err
	}, jobPlace{})
}

func (f *ciFlags) serve(cmd *cobra.Command) error {
	if f.port < 0 || f.port > 65535 {
		return fmt.Errorf("--port %d: use 0 to 65535", f.port)
	}
	dir, err := f.dir()
	if err != nil {
		return err
	}
	token, made, err := f.token()
	if err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	stderr := cmd.ErrOrStderr()
	ready := func(addr net.Addr) {
		if made {
			fmt.Fprintf(stderr, "token: %s\n", token)
		}
		fmt.Fprintf(stderr, "stepmux is listening on %s\n", addr)
	}
	ctx, stop := endsignal.Until(cmd.Context())
	defer stop()
	err = standalone.Serve(ctx, standalone.ServeConfig{
		Port: f.port, Token: token, WorkBase: dir, CacheDir: f.cacheDir, Actions: f.actions,
		Version: buildinfo.Version(), Grace: f.grace,
		Ready: ready, Policy: f.policy,
	})
	if code := endsignal.Code(ctx); code != 0 {
		return withCode(code, nil)
	}
	return systemError(err)
}

// token returns the token of the service. made is true if it is new.
func (f *ciFlags) token() (token string, made bool, err error) {
	from, token := "the environment variable "+standalone.TokenVariable, os.Getenv(standalone.TokenVariable)
	switch {
	case f.tokenFile != "":
		from = "--token-file"
		data, err := standalone.ReadFile(f.tokenFile, os.Stdin)
		if err != nil {
			return "", false, fmt.Errorf("--token-file: %w", err)
		}
		line, _, _ := bytes.Cut(data, []byte("\n"))
		token = string(bytes.TrimSpace(line))
	case token == "":
		return standalone.NewToken(), true, nil
	}
	if err := standalone.CheckToken(token); err != nil {
		return "", false, fmt.Errorf("%s: %w", from, err)
	}
	return token, false, nil
}

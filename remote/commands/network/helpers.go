package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/internal/endsignal"
	"github.com/stepmux/stepmux/remote/archive"
	"github.com/stepmux/stepmux/remote/commands"
	"github.com/stepmux/stepmux/remote/transfer"
)

// exitHelperFailed is the exit code of a failed helper command that the scripts of GitLab's manager expect.
const exitHelperFailed = 1

// helper has the flags that the helper commands share.
type helper struct {
	fl *pflag.FlagSet
	// env maps flags to the variables that can set them. file has the variables of --env-file.
	env  map[string]string
	file map[string]string
	log  transfer.Log

	transfer  transfer.Config
	selection archive.Selection
	bounds    archive.Bounds
	level     string
	verbose   bool
	envFile   string
	faultCode int               // the exit code if the network, a server or this machine is at fault
	missing   map[string]string // refused flags, with the reasons
}

func newHelper(fl *pflag.FlagSet) *helper {
	h := &helper{fl: fl, env: map[string]string{}, log: transfer.Log{To: os.Stderr}, missing: map[string]string{}}
	h.transfer.Log, h.selection.Info, h.selection.Warn = h.log, h.log.Info, h.log.Warn
	fl.IntVar(&h.faultCode, "fault-code", exitHelperFailed,
		"exit code if the network, a server or this machine is at fault")
	return h
}

// from says that a variable of the environment can set the flag.
func (h *helper) from(flag, variable string) {
	h.env[flag] = variable
	f := h.fl.Lookup(flag)
	f.Usage += " (" + variable + ")"
}

// transfers defines the flags about requests. doing is "upload" or "download", and retries the default number of
// retries.
func (h *helper) transfers(doing string, retries int) {
	h.fl.IntVar(&h.transfer.Retries, "retry", retries, "how often a failed "+doing+" is repeated")
	h.fl.DurationVar(&h.transfer.RetryTime, "retry-time", time.Second,
		"first wait before a repetition; it doubles up to 1m, and the server may ask for another")
	h.fl.DurationVar(&h.transfer.MeterEvery, "transfer-meter-frequency", 10*time.Second,
		"time between two lines about a long transfer; 0 for none")
	h.from("transfer-meter-frequency", "TRANSFER_METER_FREQUENCY")
	h.fl.StringVar(&h.transfer.CAFile, "tls-ca-file", "", "file with certificates to trust besides the system's")
	h.from("tls-ca-file", "CI_SERVER_TLS_CA_FILE")
	h.fl.DurationVar(&h.transfer.Stall, "stall-timeout", time.Minute, "longest time without a moving byte")
}

// refuse defines flags of GitLab's program that are not supported here. Their use is an error with the reason why.
func (h *helper) refuse(why string, flags ...string) {
	for _, name := range flags {
		h.missing[name] = why
		h.fl.String(name, "", "")
		_ = h.fl.MarkHidden(name) // the flag was defined just now
	}
}

// selects defines the flags that say which files to archive.
func (h *helper) selects(levelVariable string) {
	h.fl.StringArrayVar(&h.selection.Paths, "path", nil,
		"pattern of files and directories, relative to the working directory, as dist or 'out/**/*.o'; repeatable")
	h.fl.StringArrayVar(&h.selection.Exclude, "exclude", nil, "pattern of files to leave out; repeatable")
	h.fl.BoolVar(&h.selection.Untracked, "untracked", false, "add the files that git does not track")
	h.fl.BoolVar(&h.verbose, "verbose", false, "name each file")
	h.fl.StringVar(&h.level, "compression-level", "", "fastest, fast, default, slow or slowest")
	h.from("compression-level", levelVariable)
}

// extracts defines the flags that bound an archive's content. A project's own caches may have links that lead outside,
// for example a virtual environment of Python.
func (h *helper) extracts(outsideLinks bool) {
	h.fl.Int64Var(&h.bounds.Bytes, "max-extracted-size", 0, "most bytes that the files of an archive may have "+
		"(default nine tenths of the free space, at most 64 GiB)")
	h.from("max-extracted-size", "STEPMUX_MAX_EXTRACTED_SIZE")
	h.fl.BoolVar(&h.bounds.OutsideLinks, "outside-links", outsideLinks, "unpack symbolic links that lead outside of "+
		"the working directory, too")
	h.from("outside-links", "STEPMUX_OUTSIDE_LINKS")
}

// getenv returns a variable of --env-file, or of the environment.
func (h *helper) getenv(name string) string {
	if value, found := h.file[name]; found {
		return value
	}
	return os.Getenv(name)
}

// parsed completes the flags: with variables, and with the working directory.
func (h *helper) parsed() (archive.Level, error) {
	for name, why := range h.missing {
		if h.fl.Changed(name) {
			return "", fmt.Errorf("--%s: %s", name, why)
		}
	}
	if h.envFile != "" {
		var err error
		if h.file, err = readEnvFile(h.envFile); err != nil {
			return "", err
		}
	}
	if h.transfer.RetryTime < 0 {
		return "", fmt.Errorf("%w: --retry-time %v is negative", commands.ErrUsage, h.transfer.RetryTime)
	}
	for flag, variable := range h.env {
		value := h.getenv(variable)
		if value == "" || h.fl.Changed(flag) {
			continue
		}
		if err := h.fl.Set(flag, value); err != nil {
			h.log.Warn(fmt.Sprintf("%s is ignored: %v", variable, err))
		}
	}
	if h.transfer.MeterEvery == 0 { // no lines, as GitLab documents it
		h.transfer.MeterEvery = -1
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the working directory: %w", err)
	}
	h.selection.Dir = dir
	for _, patterns := range [][]string{h.selection.Paths, h.selection.Exclude} {
		for i := range patterns {
			patterns[i] = h.expand(patterns[i])
		}
	}
	level, err := archive.ParseLevel(h.level)
	if err != nil {
		h.log.Warn(err.Error() + "; default is used")
		level, err = archive.ParseLevel("")
	}
	return level, err
}

// expand replaces $NAME, ${NAME} and ${NAME:-WORD} by variables, as a shell does.
func (h *helper) expand(s string) string {
	bad := false
	expanded := os.Expand(s, func(name string) string {
		name, word, hasWord := strings.Cut(name, ":-")
		if strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") != "" || name == "" {
			bad = true
			return ""
		}
		value := h.getenv(name)
		if value == "" && hasWord {
			value = word
		}
		return value
	})
	if bad {
		h.log.Warn(s + ": it is used as it is: only $NAME, ${NAME} and ${NAME:-WORD} are replaced")
		return s
	}
	return expanded
}

// found prints the names of the files if --verbose is set.
func (h *helper) found(names []string) {
	if !h.verbose {
		return
	}
	for _, name := range names {
		h.log.Info(name)
	}
}

// runner returns a Runner that completes the flags and calls do. It prints an error in the form of GitLab's program.
func (h *helper) runner(do func(ctx context.Context, level archive.Level) error) commands.Runner {
	return func(ctx context.Context, _ []string) (int, error) {
		level, err := h.parsed()
		if err == nil {
			err = do(ctx, level)
		}
		if err == nil || errors.Is(err, commands.ErrUsage) {
			return 0, err
		}
		h.log.Fatal(err)
		code := exitHelperFailed
		if transfer.IsFault(err) {
			code = h.faultCode
		}
		return cmp.Or(endsignal.Code(ctx), code), nil
	}
}

// with calls do with a client.
func (h *helper) with(do func(client *transfer.Client) error) error {
	client, err := transfer.New(h.transfer)
	if err != nil {
		return err
	}
	defer client.Close()
	return do(client)
}

// lasting is a flag for a duration: in Go's form, 1h30m, or as a number of units.
type lasting struct {
	to   *time.Duration
	unit time.Duration
}

// String implements pflag.Value.
func (l lasting) String() string {
	if l.to == nil || *l.to == 0 {
		return ""
	}
	return l.to.String()
}

// Type implements pflag.Value.
func (lasting) Type() string { return "time" }

// Set implements pflag.Value.
func (l lasting) Set(s string) error {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		*l.to = time.Duration(n) * l.unit
		return nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return errors.New("write a time as 90s or 1h30m")
	}
	*l.to = d
	return nil
}

// headers is a flag for headers of a request, as KEY:VALUE.
type headers struct{ to http.Header }

// String implements pflag.Value.
func (headers) String() string { return "" }

// Type implements pflag.Value.
func (headers) Type() string { return "KEY:VALUE" }

// Set implements pflag.Value.
func (h headers) Set(s string) error {
	key, value, found := strings.Cut(s, ":")
	if !found || strings.TrimSpace(key) == "" {
		return errors.New("write KEY:VALUE") // the value may be secret
	}
	h.to.Set(strings.TrimSpace(key), strings.TrimSpace(value))
	return nil
}

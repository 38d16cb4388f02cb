package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// logFlags are the flags of the log.
type logFlags struct {
	verbose bool
	format  string
	level   string
}

func (f *logFlags) register(fl *pflag.FlagSet) {
	fl.BoolVarP(&f.verbose, "verbose", "v", false,
		"log the events of connections on standard error: the same as --log-level info")
	fl.StringVar(&f.level, "log-level", "warn",
		"the least level that is logged on standard error: debug, info, warn or error")
	fl.StringVar(&f.format, "log-format", "text", "format of the log: text or json")
}

// check checks the flags.
func (f *logFlags) check() error {
	if f.format != "text" && f.format != "json" {
		return fmt.Errorf("--log-format %q: use text or json", f.format)
	}
	_, err := f.least()
	return err
}

// least returns the least level that is logged.
func (f *logFlags) least() (slog.Level, error) {
	level := slog.LevelInfo
	switch f.level {
	case "debug", "info", "warn", "error":
		if err := level.UnmarshalText([]byte(f.level)); err != nil {
			return 0, fmt.Errorf("--log-level: %w", err)
		}
	default:
		return 0, fmt.Errorf("--log-level %q: use debug, info, warn or error", f.level)
	}
	if f.verbose {
		level = min(level, slog.LevelInfo)
	}
	return level, nil
}

// logger returns the log, which is written to w.
func (f *logFlags) logger(w io.Writer) *slog.Logger {
	level, _ := f.least() // valid, see check
	options := &slog.HandlerOptions{Level: level}
	if f.format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

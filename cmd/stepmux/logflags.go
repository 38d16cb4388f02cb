package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// logFlags say what is logged, and how.
type logFlags struct {
	verbose bool
	format  string
	level   string
}

func (f *logFlags) register(fl *pflag.FlagSet) {
	fl.BoolVarP(&f.verbose, "verbose", "v", false,
		"say on standard error what happens to connections, as --log-level info does")
	fl.StringVar(&f.level, "log-level", "warn", "log to standard error what is at least that: debug, info, warn or error")
	fl.StringVar(&f.format, "log-format", "text", "of the log: text or json")
}

// check says what is wrong with the flags.
func (f *logFlags) check() error {
	if f.format != "text" && f.format != "json" {
		return fmt.Errorf("--log-format %q: use text or json", f.format)
	}
	if _, err := f.least(); err != nil {
		return err
	}
	return nil
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
	level, _ := f.least() // which check has seen
	options := &slog.HandlerOptions{Level: level}
	if f.format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

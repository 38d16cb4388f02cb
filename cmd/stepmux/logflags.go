package main

import (
	"io"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/internal/termtext"
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
	f.level, f.format = "warn", "text"
	choiceFlag(fl, &f.level, "log-level", "the least level that is logged on standard error: debug, info, warn or error",
		"debug", "info", "warn", "error")
	choiceFlag(fl, &f.format, "log-format", "format of the log: text or json", "text", "json")
	grouped(fl, outputGroup)
}

// logger returns the logger of the flags. It writes to w.
func (f *logFlags) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(f.level)) // it is one of slog's
	if f.verbose {
		level = min(level, slog.LevelInfo)
	}
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if err, ok := a.Value.Any().(error); ok || a.Value.Kind() == slog.KindString {
			text := a.Value.String()
			if ok {
				text = err.Error()
			}
			a.Value = slog.StringValue(termtext.Line(text))
		}
		return a
	}}
	if f.format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/internal/flagfile"
	"github.com/stepmux/stepmux/internal/spell"
)

// flagError rewrites an error of the flag parser.
func flagError(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && unknown.GetSpecifiedShortnames() == "" {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		return fmt.Errorf("%w%s", err, meant("--%s", unknown.GetSpecifiedName(), names))
	}
	wrong, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	switch flag := wrong.GetFlag(); flag.Value.Type() {
	case "func", "int", "int64", "bool":
		return fmt.Errorf("--%s %w", flag.Name, flagfile.Cause(wrong))
	default:
		return err
	}
}

// meant suggests the word of known that is most similar to word, in this form. It returns "" if no word is similar.
func meant(form, word string, known []string) string {
	near := spell.Nearest(word, known)
	if near == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean "+form+"?", near)
}

// arguments returns the check of a command's arguments. A name that ends in ... stands for one or more arguments, a
// name in brackets for at most one. An empty argument is that of a script whose variable is not set.
func arguments(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for i, name := range names {
			if i >= len(args) && !strings.HasPrefix(name, "[") {
				return fmt.Errorf("the %s is missing; write %s", strings.TrimSuffix(name, "..."), cmd.UseLine())
			}
		}
		n := len(names)
		if more := n > 0 && strings.HasSuffix(names[n-1], "..."); len(args) > n && !more {
			return fmt.Errorf("one argument too many: %q; write %s", args[n], cmd.UseLine())
		}
		if i := slices.Index(args, ""); i >= 0 {
			return fmt.Errorf("the %s is empty; write %s", strings.Trim(names[min(i, n-1)], "[.]"), cmd.UseLine())
		}
		return nil
	}
}

// unknownCommand returns the error for arguments of a command that only has subcommands: they are not one of these.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return fmt.Errorf("unknown command %q%s", args[0], meant("%q", args[0], names))
}

// choiceFlag adds a flag that accepts one of the values. *to has its default.
func choiceFlag[T ~string](fl *pflag.FlagSet, to *T, name, usage string, values ...string) {
	if *to != "" {
		usage += fmt.Sprintf(" (default %q)", *to)
	}
	fl.Func(name, usage, func(text string) error {
		if !slices.Contains(values, text) {
			return fmt.Errorf("%.40q: use %s", text, either(values))
		}
		*to = T(text)
		return nil
	})
	_ = fl.SetAnnotation(name, valuesKey, values) // cannot fail: the flag exists
}

// fileFlag adds a flag for a file that is written, or without which less would be done, such as not to sign. An empty
// name is refused, as a script gives it whose variable is not set: the file would have no effect, without a word.
func fileFlag(fl *pflag.FlagSet, to *string, name, usage string) {
	fl.Func(name, usage, func(text string) error {
		if text == "" {
			return errors.New("is empty: name a file")
		}
		*to = text
		return nil
	})
}

// outputFlag adds --output, which is text or json.
func outputFlag(fl *pflag.FlagSet, to *string, usage string) {
	*to = "text"
	choiceFlag(fl, to, "output", usage, "text", "json")
	_ = fl.SetAnnotation("output", groupKey, []string{outputGroup}) // cannot fail: the flag exists
}

// either returns the words with "or" before the last.
func either(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// timeFlag adds a flag for a duration that is not negative. *to has its default. If that is not zero, the value 0 is
// stored as -1, which means "no time" in the packages.
func timeFlag(fl *pflag.FlagSet, to *time.Duration, name, usage string) {
	zero := *to
	if *to != 0 {
		usage += fmt.Sprintf(" (default %v)", *to)
		zero = -1
	}
	fl.Func(name, usage, func(text string) (err error) {
		*to, err = parseTime(text)
		switch {
		case err != nil:
			return err
		case *to < 0:
			return fmt.Errorf("%v is negative", *to)
		case *to == 0:
			*to = zero
		}
		return nil
	})
}

// boundedTimeFlag adds a flag for a duration from least to most. *to has its default, which the help shows unless it
// is 0. If zero is given, the value 0 is also valid, and is stored as that.
func boundedTimeFlag(
	fl *pflag.FlagSet, to *time.Duration, name, usage string, least, most time.Duration, zero ...time.Duration,
) {
	if *to != 0 {
		usage += fmt.Sprintf(" (default %v)", *to)
	}
	fl.Func(name, usage, func(text string) error {
		d, err := parseTime(text)
		switch {
		case err != nil:
			return err
		case d == 0 && len(zero) > 0:
			*to = zero[0]
		case d < least || d > most:
			return fmt.Errorf("%v: use %v to %v", d, least, most)
		default:
			*to = d
		}
		return nil
	})
}

// parseTime parses a time as it stands on a command line.
func parseTime(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		err = fmt.Errorf("%.40q: write a number with a unit, as in 30s, 5m or 2h", text)
	}
	return d, err
}

// wordsFlag adds a flag for a command, which is split into words at blanks. Quotes have no meaning.
func wordsFlag(fl *pflag.FlagSet, to *[]string, name, usage string) {
	fl.Func(name, usage, func(text string) error {
		if *to = strings.Fields(text); len(*to) == 0 && text != "" {
			return errors.New("is blank")
		}
		return nil
	})
}

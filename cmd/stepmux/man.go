package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/internal/buildinfo"
)

// newManCommand returns the command that writes the man pages. `make man` calls it.
func newManCommand() *cobra.Command {
	date := ""
	cmd := &cobra.Command{
		Use:    "man DIR",
		Short:  "Write a man page for each command to a directory",
		Args:   arguments("DIR"),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return systemError(writeManPages(cmd.Root(), args[0], date))
		},
	}
	cmd.Flags().StringVar(&date, "date", "", "the `DATE` of the pages")
	cmd.ValidArgsFunction = directories
	return cmd
}

// writeManPages writes the man page of a command and of all its subcommands.
func writeManPages(cmd *cobra.Command, dir, date string) error {
	page, err := manPage(cmd, date)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, manName(cmd)+".1"), page, 0o644); err != nil { // readable by all
		return err
	}
	for _, c := range manChildren(cmd) {
		if err := writeManPages(c, dir, date); err != nil {
			return err
		}
	}
	return nil
}

// manChildren returns the subcommands of cmd that have man pages.
func manChildren(cmd *cobra.Command) (all []*cobra.Command) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			all = append(all, c)
		}
	}
	return all
}

// manName returns the name of a command's man page.
func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage returns the man page of a command, in the language of man(7).
func manPage(cmd *cobra.Command, date string) ([]byte, error) {
	m := &manWriter{}
	m.macro("TH", strings.ToUpper(manName(cmd)), "1", date, "stepmux "+buildinfo.Version(), "stepmux")
	m.macro("SH", "NAME")
	m.line(escapeMan(manName(cmd)) + ` \- ` + escapeMan(cmd.Short))
	m.macro("SH", "SYNOPSIS")
	m.verbatim(cmd.UseLine())
	m.macro("SH", "DESCRIPTION")
	long, codes, _ := strings.Cut(cmd.Long, "\n\nExit codes:\n")
	if cmd.DisableFlagParsing { // its help is printed by another program
		help, err := helpOf(cmd)
		if err != nil {
			return nil, err
		}
		m.verbatim(help)
	} else {
		m.paragraphs(strings.TrimSpace(long))
		if long == "" {
			m.line(escapeMan(cmd.Short + "."))
		}
	}
	if below := manChildren(cmd); len(below) > 0 {
		m.macro("SH", "COMMANDS")
		for _, c := range below {
			m.macro("TP")
			m.line(manReference(c))
			m.line(escapeMan(c.Short))
		}
	}
	all := sections(cmd)
	if len(all) > 0 && !cmd.DisableFlagParsing {
		m.macro("SH", "OPTIONS")
	}
	for _, s := range all {
		if cmd.DisableFlagParsing {
			break
		}
		if len(all) > 1 {
			m.macro("SS", s.title)
		}
		s.flags.VisitAll(m.flag)
	}
	if cmd.HasExample() {
		m.macro("SH", "EXAMPLES")
		m.verbatim(cmd.Example)
	}
	if codes != "" {
		m.macro("SH", "EXIT STATUS")
		table, more, _ := strings.Cut(codes, "\n\n")
		m.verbatim(table)
		m.paragraphs(more)
	}
	if cmd.HasParent() {
		m.macro("SH", "SEE ALSO")
		m.line(manReference(cmd.Parent()))
	}
	return m.Bytes(), nil
}

// helpOf returns the help of a command that parses its arguments itself and writes to standard output.
func helpOf(cmd *cobra.Command) (string, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	stdout := os.Stdout
	os.Stdout = w
	failed := make(chan error, 1)
	go func() { // ends with the command
		failed <- cmd.RunE(cmd, []string{"--help"})
		w.Close()
	}()
	text, err := io.ReadAll(r)
	os.Stdout = stdout
	if err := <-failed; err != nil {
		return "", fmt.Errorf("%s --help: %w", cmd.CommandPath(), err)
	}
	return string(text), err
}

// manEscapes are the escapes of man(7).
var manEscapes = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`)

// manWriter writes a man page.
type manWriter struct{ bytes.Buffer }

// macro writes a macro of man(7) with its arguments.
func (m *manWriter) macro(name string, args ...string) {
	m.WriteString("." + name)
	for _, a := range args {
		fmt.Fprintf(m, ` "%s"`, strings.ReplaceAll(escapeMan(a), `"`, `\(dq`))
	}
	m.WriteByte('\n')
}

// line writes an escaped line.
func (m *manWriter) line(text string) {
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text // else it would be a request
	}
	m.WriteString(text + "\n")
}

// verbatim writes lines without escaping.
func (m *manWriter) verbatim(text string) {
	m.macro("nf")
	for line := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		m.line(escapeMan(line))
	}
	m.macro("fi")
}

// paragraphs writes a text whose paragraphs are separated by empty lines. Lines that begin with a space keep their
// layout.
func (m *manWriter) paragraphs(text string) {
	for i, p := range strings.Split(text, "\n\n") {
		if i > 0 {
			m.macro("PP")
		}
		table := false
		for line := range strings.SplitSeq(p, "\n") {
			if indented := strings.HasPrefix(line, " "); indented != table {
				table = indented
				m.macro(map[bool]string{true: "nf", false: "fi"}[table])
			}
			m.line(escapeMan(line))
		}
		if table {
			m.macro("fi")
		}
	}
}

// flag writes the description of a flag.
func (m *manWriter) flag(f *pflag.Flag) {
	name := `\fB` + escapeMan("--"+f.Name) + `\fR`
	if f.Shorthand != "" {
		name = `\fB` + escapeMan("-"+f.Shorthand) + `\fR, ` + name
	}
	kind, usage := pflag.UnquoteUsage(f)
	if kind != "" {
		name += ` \fI` + escapeMan(kind) + `\fR`
	}
	switch f.DefValue {
	case "", "false", "0", "0s", "[]":
	default:
		usage += fmt.Sprintf(" (default %s)", f.DefValue)
	}
	m.macro("TP")
	m.line(name)
	m.line(escapeMan(usage))
}

// manReference returns the reference to a command's page.
func manReference(cmd *cobra.Command) string { return `\fB` + escapeMan(manName(cmd)) + `\fR(1)` }

// escapeMan escapes everything that formatters of man pages interpret. Hyphens and quotes stay as they are when
// copied from the page.
func escapeMan(text string) string {
	return manEscapes.Replace(text)
}

package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// The groups of flags, as their titles in the help.
const (
	buildGroup      = "Builds"
	jobGroup        = "Job"
	pipelineGroup   = "Pipeline"
	fileGroup       = "Files"
	vmGroup         = "VMs"
	keyGroup        = "Keys"
	connectionGroup = "Connections"
	runnerGroup     = "Step runner"
	limitGroup      = "Isolation and limits"
	containerGroup  = "Containers"
	podGroup        = "Pods"
	actionGroup     = "GitHub Actions"
	managerGroup    = "Manager"
	sshGroup        = "SSH server"
	doorGroup       = "API and status page"
	outputGroup     = "Output"
)

// flagGroups are the groups in the order of the help. Flags outside all groups come last.
var flagGroups = []string{
	buildGroup, jobGroup, pipelineGroup, fileGroup, managerGroup, vmGroup, keyGroup, connectionGroup, sshGroup, doorGroup,
	runnerGroup, limitGroup, containerGroup, podGroup, actionGroup, outputGroup,
}

// groupKey is the annotation of a flag that names its group.
const groupKey = "group"

// grouped puts the flags that have no group yet into a group.
func grouped(fl *pflag.FlagSet, group string) {
	fl.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[groupKey] == nil {
			_ = fl.SetAnnotation(f.Name, groupKey, []string{group}) // cannot fail: the flag exists
		}
	})
}

// helpWidth is the width of a help text on a wide terminal, and when it is not written to a terminal.
const helpWidth = 120

// flagGroup is the flags of a group.
type flagGroup struct {
	title string
	flags *pflag.FlagSet
}

// fewFlags is the largest number of flags that a help shows without groups.
const fewFlags = 10

// sections returns the flags of a command by group. Groups without flags are left out.
func sections(cmd *cobra.Command) []flagGroup {
	of := map[string]*pflag.FlagSet{}
	n := 0
	cmd.LocalFlags().VisitAll(func(*pflag.Flag) { n++ })
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		group := ""
		if n > fewFlags {
			group = strings.Join(f.Annotations[groupKey], "")
		}
		if of[group] == nil {
			of[group] = pflag.NewFlagSet(group, pflag.ContinueOnError)
		}
		if f.Value.Type() == "string" && f.NoOptDefVal != "" {
			// pflag would show that as CONTEXT[="."]. The usage itself says that the value is optional.
			shown := *f
			shown.NoOptDefVal = ""
			f = &shown
		}
		of[group].AddFlag(f)
	})
	var all []flagGroup
	for _, group := range flagGroups {
		if of[group] != nil {
			all = append(all, flagGroup{group, of[group]})
		}
	}
	if others := of[""]; others != nil {
		title := "Other flags"
		if len(all) == 0 {
			title = "Flags"
		}
		all = append(all, flagGroup{title, others})
	}
	return all
}

// showUsage writes the usage of a command as cobra does, but with its flags by group.
func showUsage(cmd *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:")
	if cmd.Runnable() {
		fmt.Fprintf(&b, "\n  %s", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n  %s [command]", cmd.CommandPath())
	}
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\n\nExamples:\n%s", cmd.Example)
	}
	for _, g := range cmd.Groups() {
		showCommands(&b, cmd, g.Title, g.ID)
	}
	if cmd.HasAvailableSubCommands() && len(cmd.Groups()) == 0 {
		showCommands(&b, cmd, "Commands", "")
	}
	width := helpWidth
	if columns, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		width = min(width, max(columns, 40))
	}
	for _, s := range sections(cmd) {
		fmt.Fprintf(&b, "\n\n%s:\n%s", s.title, strings.TrimRight(s.flags.FlagUsagesWrapped(width), " \n"))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n\nUse \"%s [command] --help\" for more information about a command.", cmd.CommandPath())
	}
	_, err := fmt.Fprintln(cmd.OutOrStderr(), b.String())
	return err
}

// showCommands writes the subcommands of cmd that are in a group.
func showCommands(b *strings.Builder, cmd *cobra.Command, title, group string) {
	fmt.Fprintf(b, "\n\n%s:", title)
	for _, c := range cmd.Commands() {
		if c.GroupID == group && (c.IsAvailableCommand() || c.Name() == "help") {
			fmt.Fprintf(b, "\n  %-*s %s", c.NamePadding(), c.Name(), c.Short)
		}
	}
}

// Package vmconfig has the options of a VM, which both ends know: [Options]. The manager's packages embed them where a
// user or an inventory sets them, and write them as flags for the VM's end ([Options.Args]). The VM's end embeds them
// where it reads those flags ([Options.Flags]).
//
// A new option is a field of Options, a row in Flags, and its use on the VM.
package vmconfig

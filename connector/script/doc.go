// Package script runs shell scripts and command lines on a VM that need no step runner.
//
// [Run] runs a [Script], [RunCommand] a [Command] with a stdin and two outputs; [StartCommand] returns a [Running]
// whose stdin and stdout are the caller's. A [Starter] is a connection to the VM or its relay: by a relay the VM's
// stepmux runs them, by an SSH session a wrapper for a POSIX sh does. Either way they end, with all they started, when
// the caller's ctx ends, when the connection is lost and when this program is killed. Run and RunCommand have stopped
// everything when they return; Running.Close ends a Running. Output goes through package buildlog.
package script

// Package embeddedvm is an SSH server inside this process that stands for a VM: it listens on a loopback port, and its
// commands are real processes of this machine. [Start] returns a [Server], which owns all its goroutines and processes
// and whose Close ends them. `stepmux run` without an instance uses it, and so do tests where a real sshd is too slow
// or hard to control.
//
// A client with many channels sees the behaviour of OpenSSH's sshd: a limit of sessions per connection, refusals with
// the same reasons, commands run by the user's shell in a session of their own with pipes as stdio, a stdin that ends
// with its channel or connection, and processes that outlive both. It differs in these points:
//
//   - A channel closed by the client is confirmed at once; sshd confirms when the process has exited.
//     Either way the session slot is held until then.
//   - Every user name means the user of this process, and there is no login shell: only the start-up files that the
//     shell reads for "-c", no message of the day, no PAM.
//   - Ptys, subsystems, agent and X11 forwarding and listening for the client are refused.
//
// It runs on Unix systems.
package embeddedvm

// Package embeddedvm is a VM in miniature: an SSH server inside this process, on a loopback port, whose
// commands are real processes of this machine. Tests use it where a real sshd would be too slow or
// too hard to steer, and the program uses it as the instance of somebody who has none.
//
// It behaves like OpenSSH's sshd in everything a client with many channels can notice: a limit of
// sessions per connection, refusals with the same reasons, commands run by the user's shell in a
// session of their own with pipes as stdio, a stdin that ends with its channel or connection, and
// processes that outlive both. It differs in these points:
//
//   - A channel closed by the client is confirmed at once; sshd confirms when the process has exited.
//     Either way the session slot is held until then.
//   - Every user name is the user of this process, and there is no login: no start-up files but
//     those the shell reads for "-c", no message of the day, no PAM.
//   - Ptys, subsystems, agent and X11 forwarding and listening for the client are refused.
//
// It needs a Unix.
package embeddedvm

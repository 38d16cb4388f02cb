// Package proc runs the processes of a job so that none of them can outlive it. Linux.
//
// A command is not the child of the server but of a shim: this same program, executed again and held by
// the server through one socket. The shim is a child subreaper, so whatever the command leaves behind,
// in its process group or not, becomes the shim's child, and dies when the server closes the process or
// is gone itself, even by SIGKILL: the end of the socket is all the shim needs to see. A server alone
// can do neither: it cannot find a process that was orphaned, and it cannot act once it is dead. If it is
// the shim that is killed, what it held falls to the server, a child subreaper too, which kills it.
//
//	server ── socket: command, term, kill, close ──> shim ── fork ──> command ──> its processes
//	   │  <── started or failed, exited ──────────────┘                  │
//	   └──────────────── pipes: stdout, stderr <─────────────────────────┘
//
// The bytes of the output pass from the command straight to the server. The command, its environment,
// its directory and the ends of its pipes travel over the socket, so that a shim can be started before
// there is a command for it (see [Starter]): the shim's own arguments and environment, which any user of
// the machine can see, say nothing.
//
// A program that starts processes calls [Main] as the first line of its main, and so does a TestMain. From its first
// process on it is a child subreaper, and when a shim was killed it kills those of its children that are in other
// sessions than its own: it should start none such itself.
package proc

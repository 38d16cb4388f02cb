// Package proc runs processes so that none of them can outlive the program that runs them. It needs Linux.
//
// [Start] and [Starter] run the commands of jobs. A command is not the child of the server but of a shim: this same
// program, executed again and held by the server through one socket. The shim is a child subreaper, so every process
// that the command leaves behind, in its process group or not, becomes the shim's child. The shim kills them when the
// server closes the [Process], or when the socket ends because the server is gone, even by SIGKILL. A server alone can
// do neither: it cannot find a process that was orphaned, and it cannot act once it is dead. If the shim is killed, its
// processes become children of the server, a child subreaper too, which kills them.
//
//	server -- socket: command, term, kill, close --> shim -- fork --> command --> its processes
//	  |  <--- started or failed, exited --------------'                  |
//	  '----------------- pipes: stdout, stderr <-------------------------'
//
// Output goes from the command straight to the server. The command, its environment, its directory and the ends of its
// pipes travel over the socket, so a shim can be started before there is a command for it (see [Starter]), and the
// shim's own arguments and environment, which every user of the machine can see, hold no secrets.
//
// [Children] is for programs that start processes without a shim: it reaps and kills all their descendants.
//
// A program that starts processes calls [Main] as the first line of its main, and so does a TestMain. From its first
// process on it is a child subreaper. When a shim was killed it kills those of its children that are in other sessions
// than its own, so it should start no other processes in sessions of their own.
package proc

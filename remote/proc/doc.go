// Package proc runs processes so that none of them can outlive the program that runs them. It needs Linux.
//
// An [Init] runs the commands of a server. They are not the server's children but those of one process of its own, the
// init: this same program, executed again and held by the server through one socket. The init is a child subreaper, so
// every process that a command leaves behind, in its process group or not, becomes the init's child. It kills them when
// the server closes their [Process], or all of them when the socket ends because the server is gone, even by SIGKILL. A
// server alone can do neither: it cannot find a process that was orphaned, and it cannot act once it is dead.
//
//	server -- room, command, term, kill, close --> init -- fork --> command --> its processes
//	  |  <--- ready, started or failed, exited, closed -'              |
//	  '------------- pipes: stdout, stderr <---------------------------'
//
// With isolation (package walls) the init is the first process of a PID namespace: if it ends, the kernel kills the
// rest. Without, its processes become children of the server, a child subreaper too, which kills them.
//
// Output goes from a command straight to the server. A command, its environment, its directory and the ends of its
// pipes travel over the socket, so the init can be started before there is a command, and its own arguments and
// environment, which every user of the machine can see, hold no secrets.
//
// [Children] is for programs that start processes without an init: it reaps and kills all their descendants.
//
// A program that starts processes calls [Main] as the first line of its main, and so does a TestMain. From its first
// process on it is a child subreaper. When an init was killed it kills those of its children that are in other sessions
// than its own, so it should start no other processes in sessions of their own.
package proc

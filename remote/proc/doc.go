// Package proc runs processes so that no process outlives the program that runs them. It needs Linux.
//
// An [Init] runs the commands of a server. It starts one process of its own, the init: this same program, executed
// again and connected to the server by one socket. The commands are children of the init, not of the server. The init
// is a child subreaper: every process that a command leaves behind, in its process group or not, becomes the init's
// child. The init kills these processes when the server closes their [Process]. If the server dies, even by SIGKILL,
// the socket ends and the init kills all of them. A server cannot do that by itself: it does not find processes that
// were orphaned, and it cannot act once it is dead.
//
//	server -- room, command, term, kill, close --> init -- fork --> command --> its processes
//	   |  <--- ready, started or failed, exited, closed -'              |
//	   '------------- pipes: stdout, stderr <---------------------------'
//
// With isolation (package isolate) the init is the first process of a PID namespace: if it ends, the kernel kills the
// rest. Without isolation, the processes of a killed init become children of the server, a child subreaper too, which
// kills them.
//
// Output goes from a command straight to the server. A command, its environment, its directory and the ends of its
// pipes travel over the socket. So the init can be started before there is a command. Its own arguments and
// environment, which every user of the machine can see, hold no secrets.
//
// [Children] is for programs that start processes without an init: it reaps and kills all their descendants.
//
// A program that starts processes calls [Main] as the first line of its main, and so does a TestMain. It becomes a
// child subreaper with its first process. If an init is killed, the program kills all its children that are in other
// sessions than its own; so it should start no other processes in sessions of their own.
package proc

// Package stockmanager imitates the manager of GitLab Runner 19.4 with its instance executor and native steps, for
// tests: a [Manager] runs a [Job] over an SSH connection of its own. It asks the runner's program on the VM for its
// version, lets a login shell make the socket's directory and start `steps serve`, waits for the ready marker, connects
// to the socket by `steps proxy`, and calls the service proto.StepRunner. Before and after the steps it sends scripts
// to `bash` on the VM, which call the runner's program for the job's caches and artifacts. It gets no sources.
//
// It shares no code with the programs under test except for the generated code of the service. Like the real manager it
// does not wait for the shell's end: a test that requires that nothing is left on the VM must wait for that itself.
package stockmanager

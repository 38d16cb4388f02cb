// Package clone checks out one revision of a git repository in a directory, for the built-in step git/clone.
//
// [Clone] runs the machine's own git, with the configuration of the machine and the user but without hooks. The
// password is in no argument, variable or file: git asks for it by a socket that only its own children have. Clone owns
// the git processes and the goroutine that answers them; both have ended when it returns. The caller owns the
// directory.
package clone

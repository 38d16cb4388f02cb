// Package clone makes a directory the checkout of one revision of a git repository, for the built-in step git/clone.
//
// [Clone] runs the machine's own git, with the configuration of the machine and the user but without hooks. A password
// is in no argument, variable or file: git asks for it by a socket that only its own children have. Clone owns the git
// processes and the goroutine that answers them; both have ended when it returns. The directory is the caller's.
package clone

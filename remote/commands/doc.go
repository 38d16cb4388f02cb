// Package commands is the command line of the VM's end: `steps serve`, `steps proxy`, `steps relay`, `steps script`,
// `steps cache` and `version`. Three programs use it: cmd/stepmux-vm, cmd/stepmux-fetch and cmd/stepmux. A [Program] is
// a set of commands; packages doors and network have the commands.
//
// It also has the helper commands that the scripts of a GitLab manager call: `artifacts-uploader`,
// `artifacts-downloader`, `cache-archiver` and `cache-extractor`. They exit with 1 if they fail, as those scripts
// expect.
//
// Data goes to standard output and everything else to standard error. The exit codes are those of the program: 0, 2 for
// wrong usage, 3 for a failure, and 128 plus the signal's number for a command that a signal ended. serve exits with 0
// after a signal.
package commands

// Package commands is the command line of the VM's end: `steps serve`, `steps proxy`, `steps relay`, `steps script`,
// `steps cache` and `version`. Two programs have it: cmd/stepmux-vm, which has nothing else, and cmd/stepmux.
//
// It also has the helper commands that the scripts of a GitLab manager call: `artifacts-uploader`,
// `artifacts-downloader`, `cache-archiver` and `cache-extractor`. They exit with 1 if they fail, as those scripts
// expect.
//
// Data goes to standard output and all else to standard error. The exit codes are those of the program: 0, 2 for
// wrong usage, 3 for a failure, and 128 and the signal's number for a command that a signal ended. For serve a signal
// is a good end: 0.
package commands

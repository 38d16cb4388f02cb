// Package actionmirror fills a directory with the GitHub Actions that a file needs, so that its jobs run without
// github.com (--actions-base DIR).
//
// [Uses] finds the actions that a workflow, an action.yml or a file of steps names. [Fill] brings them, and those that
// they use themselves, into bare git repositories, one for each. It runs the git program with the configuration of the
// user, whose machine this is, and returns when git has ended.
package actionmirror

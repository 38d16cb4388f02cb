// Package actionmirror fills a directory with the GitHub Actions that a file needs, so that its jobs run without
// github.com (--actions-base DIR).
//
// [Uses] returns the actions in a workflow, an action.yml or a file of steps. [Fill] brings them, and the actions that
// they use themselves, into bare git repositories, one for each action. It runs the git program with the user's own
// configuration, and returns when git has ended. The package owns nothing else.
package actionmirror

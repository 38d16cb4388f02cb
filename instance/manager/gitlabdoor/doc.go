// Package gitlabdoor speaks with a GitLab server as a runner does: a [Client] asks for jobs and reports them. A report
// of a job sends its trace, signs of life and the final state, and goes on where an earlier one was killed.
//
// These are the first parts of a door like giteadoor. The door itself, which reserves slots, keeps jobs and gives them
// to the manager, is not there yet. The server's rules are in the tests' fake, gitlabtest, which GitLab Runner's own
// client checks (make prove WHAT=gitlab).
package gitlabdoor

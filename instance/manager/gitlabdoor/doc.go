// Package gitlabdoor speaks with a GitLab server as a runner does: a [Client] makes the calls.
//
// It is the first part of a door like giteadoor: the client is here; the door that reserves slots, keeps jobs and gives
// them to the manager is not. The server's rules are in the tests' fake, gitlabtest, which GitLab Runner's own client
// checks (make prove WHAT=gitlab).
package gitlabdoor

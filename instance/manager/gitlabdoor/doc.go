// Package gitlabdoor takes the jobs of a GitLab server for a manager. A [Door] reserves slots, asks for jobs, and
// makes a pipeline of one job of each, which it reports: the trace, signs of life, and the result. A [Client] makes
// the calls.
//
// The server's rules are in the tests' fake, gitlabtest, which GitLab Runner's own client checks (make prove
// WHAT=gitlab).
package gitlabdoor

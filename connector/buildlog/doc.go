// Package buildlog joins the lines of a build's log: the output of its job and the words of its step runner.
//
// A [Log] passes both on to a Writer of the caller's, bounds the memory that waits for it and fails when it takes
// nothing for too long. [Remarks] turns a stream of the step runner into marked lines of a Log. The caller of New owns
// the Log and ends it with Close; the Writer stays the caller's. Packages connector and script write to it.
package buildlog

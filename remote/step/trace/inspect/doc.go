// Package inspect shows traces to people: [Show] prints one, [Compare] finds the differences between two. Both expect
// traces that somebody else may have changed, and print nothing that means something to a terminal.
package inspect

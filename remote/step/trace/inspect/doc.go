// Package inspect shows traces to people: [Show] prints one, [Compare] finds the differences between two. Both accept
// traces that somebody has changed, and escape everything that a terminal could obey.
package inspect

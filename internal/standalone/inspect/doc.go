// Package inspect shows traces to people: [Show] prints one, [Compare] finds the differences between two. Both accept
// hostile traces: they escape every character that a terminal could interpret. The package owns nothing.
package inspect

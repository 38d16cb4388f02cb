// Package fields stands for labkit's names of log fields.
package fields

// HTTPStatusCode names the status of an answer.
const HTTPStatusCode = "status"

// Deprecated has the fields that have other names now: it is empty here.
var Deprecated = map[string]struct{ Standard string }{}

// VariantVersion has the versions of fields.
var VariantVersion = map[string]int{}

// Package inventory reads the instances of a group from a YAML file, and again when it changes.
//
// [Parse] reads a text, strictly: a key that is unknown, an ID that is there twice, a key file that is
// missing are errors with their place. [Open] reads a file and gives a [File], whose Watch keeps an instance.Group up to date.
package inventory

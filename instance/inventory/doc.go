// Package inventory reads the instances of a group from a YAML file, and reads the file again when it changes.
//
// [Parse] reads a text strictly: an unknown key, an ID used twice or a missing key file is an [Error] with its line and
// column. [Open] reads a file and returns a [File], which is for instance.Group.Follow; the file is watched
// while Follow runs. docs/fleet.md describes the keys.
package inventory

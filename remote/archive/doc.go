// Package archive packs files of a project into archives, and unpacks archives that may be hostile.
//
// [Find] collects the files that a [Selection] matches, and [Files.Write] packs them in a [Format]. Both stay below the
// project's directory, whatever the patterns and symbolic links say. [Extract] unpacks a zip archive or a tar archive
// with zstd below a directory, within the bounds of [Bounds].
package archive

// Package archive packs files of a project into archives, and unpacks archives that may be hostile.
//
// [Find] collects the files that match a [Selection], and [Files.Write] packs them in a [Format]. Both stay below the
// project's directory, for all patterns and symbolic links. [Extract] unpacks a zip archive or a tar archive with zstd
// below a directory, within [Bounds]. The caller closes the Files; no function leaves a goroutine.
package archive

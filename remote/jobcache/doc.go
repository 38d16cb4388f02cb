// Package jobcache keeps a job's files for later jobs. [Save] packs them into an archive on this machine and uploads
// it. [Restore] downloads an archive and unpacks it. The servers' URLs are presigned, so this package needs no
// credentials of a cloud. The caller owns the [transfer.Client]; the package owns nothing.
package jobcache

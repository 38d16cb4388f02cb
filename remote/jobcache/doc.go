// Package jobcache keeps a job's files for later jobs: [Save] packs them into an archive on this machine and uploads
// that, and [Restore] downloads an archive and unpacks it. Servers are reached by presigned URLs, so this package holds
// no credentials of a cloud.
package jobcache

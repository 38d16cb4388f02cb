// Package artifacts uploads a job's files to a GitLab server and downloads the files of other jobs, by the API for
// runners: [Upload] and [Download]. Archives are streamed, so memory does not grow with them. A [Statement] says how
// the files were made. The caller owns the [transfer.Client]; the package owns nothing.
package artifacts

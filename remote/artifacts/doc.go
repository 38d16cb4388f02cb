// Package artifacts uploads a job's files to a GitLab server and downloads those of other jobs, by the API for runners:
// [Upload] and [Download]. Archives go through as streams, so that memory does not grow with them. A [Statement] says
// how the files were made.
package artifacts

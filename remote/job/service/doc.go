// Package service is the gRPC face of the job store: the StepRunner service of remote/api/stepmuxv1 and,
// beside it, the one of remote/api/runnerproto, so that the manager of today's GitLab Runner can drive this
// step runner too. Both show the same jobs.
//
// It checks what arrives and translates; it decides nothing about jobs. What is wrong with a request
// is INVALID_ARGUMENT with the name of the field and what to change. No error repeats a value of a
// request, which may be secret.
package service

// Package service serves a job store over gRPC. It has the StepRunner service of remote/api/stepmuxv1 and, on the same
// server, that of remote/api/runnerproto, by which the manager of today's GitLab Runner can drive this step runner.
// Both show the same jobs.
//
// [NewServer] makes the server of a store, [RequireSecret] and [RequireToken] guard it, and [Stop] ends it with its
// jobs. The caller owns the server and the store, and closes the store after the server.
//
// The package checks and translates requests and decides nothing about jobs. A bad request is INVALID_ARGUMENT; the
// message names the field and the remedy. No error repeats a value of a request, because it may be secret.
package service

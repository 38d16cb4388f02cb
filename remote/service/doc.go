// Package service is the gRPC face of the job store: the StepRunner service of remote/api/stepmuxv1.
//
// It checks what arrives and translates; it decides nothing about jobs. What is wrong with a request
// is INVALID_ARGUMENT with the name of the field and what to change. No error repeats a value of a
// request, which may be secret.
package service

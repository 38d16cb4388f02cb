// Package transfer sends files to servers and gets files from them, for the commands that a job's scripts call:
// remote/artifacts and remote/jobcache.
//
// A [Client] owns connections until Close. [Client.Do] sends one request: it follows safe redirects without the
// caller's credentials, fails when no byte moves for [Config.Stall], and turns a refusal into a [StatusError].
// [Client.Retry] repeats requests that may succeed later. [Log] writes the lines that a job's log shows. No error and
// no line contains the query of a URL, because that may be a signature.
package transfer

// Package access lets clients on other machines use a manager by TCP.
//
// A [Token] is the secret that a client shows: the manager's end opens its file, the client's end reads it. The manager
// has a certificate, its own or that of an operator. A [Target] is the client's end: where the manager is, and how the
// client knows it. docs/manager.md describes it.
package access

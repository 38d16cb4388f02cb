// Package login decides how a client and an SSH server trust each other.
//
// The two types a user meets are [HostKeys], the policy by which a server's host key is verified, and [Auth], one
// way to log in to it. Package mux takes both in its Config. [PinnedHostKeys], [KnownHosts], [HostKeyCommand] and
// [FirstUse] make policies, [FirstOf] joins them; [KeyFile], [Key], [Agent], [ParseIdentity] and [Password] make ways
// to log in.
//
// [Prepare] collects all of it for one connection and returns a [Login], which package mux runs. A Login belongs to
// one handshake, starts no goroutine and needs no closing.
package login

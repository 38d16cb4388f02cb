// Package sshtest gives tests SSH servers to talk to: a VM in miniature inside the test process, and
// a real OpenSSH daemon on a configuration of its own. Both come as a [Server], so that one table of
// tests runs on either, and both can be reached through a [TCPProxy] that stalls and cuts.
//
// Everything is released when the test ends. Servers are gone by then, and so are the commands of
// connections that were open; a command that outlived its connection to a real daemon is not found.
package sshtest

// Package sshtest starts SSH servers for tests: an embedded VM inside the test process ([InProcess]), and a real
// OpenSSH daemon with a configuration of its own ([OpenSSH]). Both are a [Server], so that one table of tests runs on
// either, and both can be reached through a [TCPProxy] that stalls and cuts connections.
//
// The end of the test stops the servers and kills the commands of connections that are still open. It does not find a
// command that outlived its connection to a real daemon.
package sshtest

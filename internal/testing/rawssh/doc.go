// Package rawssh is an SSH server that sends message by message, for tests of a client against a server that breaks the
// protocol: no library can send such messages. [Serve] starts a [Server] with a script; each script gets a [Conn]. The
// end of the test closes them.
//
// It has one algorithm of each kind (RFC 8731, RFC 8709, RFC 5647 in OpenSSH's form), and does not start key exchanges
// by itself.
package rawssh

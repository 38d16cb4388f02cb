// Package rawssh is the server's side of SSH message by message, for tests of what a client does with a server
// that does not keep to the protocol: no library lets a server say such things.
//
// It has one algorithm of each kind (RFC 8731, RFC 8709, RFC 5647 as OpenSSH has it), and no rekeying of its own
// accord.
package rawssh

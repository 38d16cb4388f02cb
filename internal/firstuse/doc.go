// Package firstuse keeps the host keys that machines showed when they were first reached, by the machines'
// identities: never by their addresses, which the next machine may be given.
//
// The file has the form of OpenSSH's known_hosts, with the identity in place of the name, so that
//
//	ssh -o UserKnownHostsFile=FILE -o HostKeyAlias=ID ...
//
// checks a machine by it. Each line ends with the day on which the machine was last reached, by which those
// that are gone for long are forgotten.
package firstuse

// Package firstuse stores the host keys that machines showed when they were first reached (trust on first use). A
// [Store] is a file; it is keyed by the machine's identity, never by its address, which the next machine may get.
//
// The file has the form of OpenSSH's known_hosts, with the identity in place of the name, so that
//
//	ssh -o UserKnownHostsFile=FILE -o HostKeyAlias=ID ...
//
// verifies a machine by it. Each line ends with the day on which the machine was last reached. Machines that were not
// reached for 90 days are forgotten.
package firstuse

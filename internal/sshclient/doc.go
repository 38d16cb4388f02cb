// Package sshclient finds out how a machine is reached and who may answer there, from what OpenSSH's client
// is configured with and from what an operator adds to that: names of ssh_config(5), keys, agents, passphrase
// and identity commands, policies for host keys, jump hosts.
package sshclient

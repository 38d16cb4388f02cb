// Package innerport lets the container of a docker action connect to an address of the machine's loopback interface,
// without a port that others could connect to. The container has a loopback interface of its own.
//
// A [Door] is on the machine: a unix socket, whose connections go on to the address. Its owner closes it. [Run] is in
// the container, which gets the socket as a file: it listens at the same address there, and runs the program of the
// container beside that.
package innerport

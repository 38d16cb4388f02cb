// Package source makes, lists and deletes the VMs of a group by a program of the operator.
//
// A [Source] is where VMs come from. [Exec] is the one for operators: it runs a program for each operation, with a
// JSON request on its standard input and a JSON answer on its standard output. docs/elastic.md has the contract.
// Nothing runs between two operations, so nothing can die there. All that a program answers is checked before it is
// believed: a wrong answer is an error of its operation, and changes nothing.
package source

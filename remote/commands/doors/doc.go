// Package doors has the commands that a manager starts on a VM: `steps serve`, `steps proxy`, `steps relay`, `steps
// script` and `steps end`. Each turns its flags into a configuration and makes one call of package remote, which owns
// everything that the command starts. [Commands] is the list.
package doors

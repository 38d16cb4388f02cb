// Package doors has the commands that a manager starts on a VM: `steps serve`, `steps proxy`, `steps relay`, `steps
// script` and `steps end`. Each turns its flags into the configuration of package remote and makes one call.
package doors

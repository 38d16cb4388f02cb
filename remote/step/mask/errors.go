package mask

import (
	"errors"
	"fmt"
)

var (
	// ErrShort says that a secret is not masked because it is too short: such a text occurs everywhere.
	ErrShort = fmt.Errorf("the value has less than %d bytes", minLen)
	// ErrFull says that a secret is not masked because the Set is full.
	ErrFull = errors.New("the values to be masked are too large in all; they can have about a quarter of a megabyte")
)

package fetch

import "time"

// limits bound a component, and the patience with its server.
type limits struct {
	entries int           // files, links and directories
	file    int64         // bytes of one file
	total   int64         // bytes of all files, and of an archive
	ratio   int64         // bytes of an archive's files for each of its own, beyond ratioFloor
	stall   time.Duration // for which the server may send nothing; git counts in seconds
}

const (
	maxTarget  = 4095 // bytes of a symbolic link's target
	maxPath    = 4095 // bytes of a path in a component
	ratioFloor = 16 << 20
	maxConfig  = 4 << 20 // bytes of what an image says of itself beside its manifest
	nameSize   = 256     // bytes in an archive's directory for each entry, on average, beyond nameFloor
	nameFloor  = 1 << 20
)

func defaultLimits(maxBytes int64) limits {
	return limits{
		entries: 200_000, file: min(512<<20, maxBytes), total: min(2<<30, maxBytes), ratio: 200,
		stall: stallTime,
	}
}

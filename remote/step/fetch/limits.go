package fetch

import "time"

// limits bound a component, and the wait for its server.
type limits struct {
	entries int           // files, links and directories
	file    int64         // bytes of one file
	total   int64         // bytes of all files, and of an archive
	ratio   int64         // bytes of an archive's files for each byte of the archive, after the first ratioFloor bytes
	parts   int           // parts of all paths that links lead through
	proof   int64         // bytes of the parts of a gitProof that grow with the number of files
	stall   time.Duration // longest time without a byte from the server; git counts in seconds
}

const (
	maxParts   = 10_000_000
	maxTarget  = 4095 // bytes of a symbolic link's target
	maxLinks   = 40   // links in a path, as in Linux
	maxPath    = 1024 // bytes of a path in a component
	maxDepth   = 64   // parts of a path in a component
	ratioFloor = 16 << 20
	maxConfig  = 4 << 20 // bytes of an image's configuration

	// nameSize and nameFloor bound the bytes of all paths and targets, which stay in memory: on average of an entry, and
	// beyond that.
	nameSize, nameFloor = 256, 1 << 20
)

// defaultLimits returns the limits in a cache of size bytes.
func defaultLimits(size int64) limits {
	return limits{
		entries: 200_000, file: min(512<<20, size), total: min(2<<30, size), ratio: 200, parts: maxParts, proof: 16 << 20,
		stall: stallTime,
	}
}

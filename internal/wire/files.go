package wire

// MaxProject bounds the archive of a project, in bytes.
const MaxProject = 16 << 30

// MaxPatterns bounds the patterns of a build's artifacts.
const MaxPatterns = 1000

// MaxPatternBytes bounds their length together.
const MaxPatternBytes = 64 << 10

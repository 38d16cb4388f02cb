package wire

// MaxProject bounds the archive of a project, in bytes.
const MaxProject = 16 << 30

// MaxArchives bounds the archives of a build: that of the project, and those of other builds.
const MaxArchives = 10_001

// MaxPatterns bounds the patterns of a build's artifacts.
const MaxPatterns = 1000

// MaxPatternBytes bounds their length together.
const MaxPatternBytes = 64 << 10

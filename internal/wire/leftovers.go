package wire

// MaxLeftovers bounds the output of `steps end`, in bytes. It is a list of texts, as one line of JSON: each names a
// process or a directory of the build that is left on the VM.
const MaxLeftovers = 16 << 10

package wire

// Leftovers is the output of `steps end`, as one line of JSON: what of the build is left on the VM. A line names one
// process or one directory.
type Leftovers struct {
	Left []string `json:"left"`
}

// MaxLeftovers bounds the output of `steps end`, in bytes.
const MaxLeftovers = 16 << 10

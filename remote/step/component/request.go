package component

// MaxMessage bounds a Request and an Answer, in bytes.
const MaxMessage = 4 << 20

// Request is the line of JSON that a Fetcher sends to its program.
type Request struct {
	// Reference is a stepmuxv1.Reference on the wire.
	Reference   []byte      `json:"reference"`
	Credentials Credentials `json:"credentials"`
	// Dir is the cache's directory; empty for the default.
	Dir string `json:"dir,omitempty"`
	// Mirrors replaces the beginnings of URLs of git repositories by another URL, or by a local path.
	Mirrors map[string]string `json:"mirrors,omitempty"`
	// Open says that the program has the local archive of Reference as its file [ArchiveFile].
	Open bool `json:"open,omitempty"`
	// Isolated says that jobs are isolated, so the program may start no other program that they can have put into PATH.
	// Its name in JSON is older: a Fetcher and its program can be of different versions while a VM is upgraded.
	Isolated bool `json:"walled,omitempty"`
}

// ArchiveFile is the descriptor after the standard streams.
const ArchiveFile = 3

// Answer is the line of JSON that the program sends. The component stays in the cache until the program's standard
// input ends. Before that, the Fetcher takes a lock of its own.
type Answer struct {
	// Error is empty if the step was fetched. It has no credentials.
	Error string `json:"error,omitempty"`
	// System says that Error is the text of a SystemError, and Server is that of the SystemError.
	System bool `json:"system,omitempty"`
	Server bool `json:"server,omitempty"`

	Source
	// Version and ResolvedRef are those of Source.
	Version     string `json:"version,omitempty"`
	ResolvedRef string `json:"resolved_ref,omitempty"`
	Root        string `json:"root,omitempty"`
	Dir         string `json:"dir,omitempty"`
	File        string `json:"file,omitempty"`
	Cached      bool   `json:"cached,omitempty"`
	// Lock is the file whose shared lock keeps the component in the cache.
	Lock string `json:"lock,omitempty"`
}

// AnswerOf returns the Answer about a fetched component.
func AnswerOf(c *Component) Answer {
	return Answer{
		Source: c.Source, Version: c.Version, ResolvedRef: c.ResolvedRef,
		Root: c.Root, Dir: c.Dir, File: c.File, Cached: c.Cached, Lock: c.held.Name(),
	}
}

// component returns the Component that a describes.
func (a Answer) component() *Component {
	c := &Component{Source: a.Source, Root: a.Root, Dir: a.Dir, File: a.File, Cached: a.Cached}
	c.Version, c.ResolvedRef = a.Version, a.ResolvedRef
	return c
}

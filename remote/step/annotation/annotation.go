// Package annotation has the type of the remarks that actions make about files of a project. The engine's results and
// traces use it.
package annotation

// Annotation is a remark about a place in the project's files, or about the step. Secrets in it are masked once the
// step has ended.
type Annotation struct {
	// Level is notice, warning or error.
	Level   string `json:"level"`
	Message string `json:"message"`
	Title   string `json:"title,omitempty"`
	// File is a path. It is empty if the remark is not about a file. Unknown numbers are 0.
	File      string `json:"file,omitempty"`
	Line      int    `json:"line,omitempty"`
	EndLine   int    `json:"end_line,omitempty"`
	Column    int    `json:"column,omitempty"`
	EndColumn int    `json:"end_column,omitempty"`
}

package replay

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/stepmux/stepmux/internal/termtext"
	"github.com/stepmux/stepmux/remote/step/lang"
	"github.com/stepmux/stepmux/remote/step/trace"
)

// readDefinition reads a file that can be the definition of a step.
func readDefinition(path string) ([]byte, error) {
	var b bytes.Buffer
	err := readPlain(path, func(file io.Reader) error {
		_, err := io.Copy(&b, io.LimitReader(file, lang.MaxText+1))
		return err
	})
	return b.Bytes(), err
}

// fileDigest returns the SHA-256 of a regular file.
func fileDigest(path string) (string, error) {
	h := sha256.New()
	err := readPlain(path, func(file io.Reader) error {
		_, err := io.Copy(h, file)
		return err
	})
	return fmt.Sprintf("%x", h.Sum(nil)), err
}

// readPlain calls read with the regular file at path.
func readPlain(path string, read func(io.Reader) error) error {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not hold us
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", path)
	}
	return read(file)
}

// shownPath is the path of a local step for a reader.
func shownPath(location string) string {
	if rel, inside := strings.CutPrefix(location, trace.WorkDir); inside {
		location = "." + rel
	}
	return graphic(location)
}

// graphic is a text of a trace for people: not too long, and without anything that a terminal could obey.
func graphic(text string) string { return termtext.Escape(termtext.Cut(text, 400)) }

package main

import (
	"io"
	"io/fs"
	"runtime"
	"strings"

	"github.com/stepmux/stepmux/connector/program"
)

// carried returns the VM's ends that this program carries, one for each platform. `make build` puts them in. A program
// that is built by the go command alone carries none, and is the VM's end itself.
func carried() []*program.Binary {
	const vm, fetch = "carried/stepmux-vm-", "carried/stepmux-fetch-"
	files, _ := fs.Glob(carriedFiles, vm+"*.gz") // fails only for a malformed pattern
	var all []*program.Binary
	for _, name := range files {
		machine := strings.TrimPrefix(name, vm)
		platform := strings.Replace(strings.TrimSuffix(machine, ".gz"), "-", "/", 1)
		packed := func(name string) *program.Binary {
			return program.PackedBinary(platform, func() (io.ReadCloser, error) { return carriedFiles.Open(name) })
		}
		all = append(all, packed(name).WithBeside(packed(fetch+machine)))
	}
	return all
}

// platforms says for which platforms this program carries the VM's end.
func platforms() string {
	var all []string
	for _, end := range carried() {
		all = append(all, end.Platform())
	}
	if len(all) == 0 {
		return "no stepmux-vm, as make did not build it; it is its own VM's end, for this platform"
	}
	return "stepmux-vm and stepmux-fetch for " + strings.Join(all, ", ")
}

// ownEnd returns the VM's end for this machine, or nil if this program carries none.
func ownEnd() *program.Binary {
	for _, end := range carried() {
		if end.Platform() == runtime.GOOS+"/"+runtime.GOARCH {
			return end
		}
	}
	return nil
}

// vmsEndSum returns the SHA-256 of ownEnd, or "".
func vmsEndSum() (string, error) {
	if end := ownEnd(); end != nil {
		return end.SHA256()
	}
	return "", nil
}

package main

import (
	"io"
	"io/fs"
	"runtime"
	"strings"

	"github.com/stepmux/stepmux/connector/program"
)

// carried returns the programs for VMs that this program contains, one for each platform. `make build` adds them. A
// program that was built without make contains no others, and is itself the program for VMs.
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

// platforms lists the platforms of the programs in carried.
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

// ownEnd returns the program of carried for this machine's platform, or nil.
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

//go:build carry

package main

import "embed"

// carriedFiles has the VM's ends, as carried/stepmux-vm-OS-ARCH.gz, and the stepmux-fetch of each.
//
//go:embed carried/stepmux-*.gz
var carriedFiles embed.FS

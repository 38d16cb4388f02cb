//go:build carry

package main

import "embed"

// carriedFiles has the VM's ends, as carried/OS-ARCH.gz.
//
//go:embed carried/*.gz
var carriedFiles embed.FS

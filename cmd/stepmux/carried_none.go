//go:build !carry

package main

import "embed"

// carriedFiles is empty: `make build` did not build this program.
var carriedFiles embed.FS

//go:build !race

package racefree

const raced = false

//go:build race

package racefree

const raced = true

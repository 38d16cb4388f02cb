// Package labels writes the labels of instances for people.
package labels

import (
	"maps"
	"slices"
	"strings"
)

// Text writes labels as NAME=VALUE, sorted: "os=linux, size=large".
func Text(of map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		all = append(all, name+"="+of[name])
	}
	return strings.Join(all, ", ")
}

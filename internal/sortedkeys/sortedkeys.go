// Package sortedkeys lists the keys of a map in order. Its one function ([Of]) serves all types of maps: maps.Keys is
// compiled again for each, which costs the VM's end 0.8 KB each.
package sortedkeys

import (
	"reflect"
	"slices"
)

// Of returns the keys of m, sorted. m is a map with keys of type string; Of panics if it is something else.
func Of(m any) []string {
	v := reflect.ValueOf(m)
	if v.Type().Key().Kind() != reflect.String {
		panic("sortedkeys: the keys are no strings")
	}
	keys := make([]string, 0, v.Len())
	for it := v.MapRange(); it.Next(); {
		keys = append(keys, it.Key().String())
	}
	slices.Sort(keys)
	return keys
}

package pipeline

import "time"

// nodes is a heap of nodes, the lowest first.
type nodes []int32

func (h nodes) Len() int           { return len(h) }
func (h nodes) Less(i, j int) bool { return h[i] < h[j] }
func (h nodes) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *nodes) Push(x any)        { *h = append(*h, x.(int32)) }
func (h *nodes) Pop() any {
	last := len(*h) - 1
	v := (*h)[last]
	*h = (*h)[:last]
	return v
}

// due is the end of a delay.
type due struct {
	at   time.Time
	node int32
}

// dues is a heap of delays, the one that ends first at its top.
type dues []due

func (h dues) Len() int           { return len(h) }
func (h dues) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dues) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dues) Push(x any)        { *h = append(*h, x.(due)) }
func (h *dues) Pop() any {
	last := len(*h) - 1
	d := (*h)[last]
	*h = (*h)[:last]
	return d
}

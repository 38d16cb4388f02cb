package pool

// Known returns how many keys the pool remembers.
func (p *Pool[C]) Known() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.entries)
}

package connector

// For returns a copy of b that says it is for another platform.
func (b Binary) For(platform string) *Binary {
	b.platform = platform
	return &b
}

// Sum returns the SHA-256 of b.
func (b *Binary) Sum() string { return b.sum }

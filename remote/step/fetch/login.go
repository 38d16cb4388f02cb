package fetch

import "net/url"

// For returns the login for the server of a URL, or nil. A login in the URL itself comes first.
func (c Credentials) For(address *url.URL) *Login { return c.forURL(address) }

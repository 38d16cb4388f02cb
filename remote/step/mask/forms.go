package mask

import (
	"encoding/base64"
	"net/url"
	"slices"
	"strings"
)

// minLen is the length of the shortest text that is masked, in bytes.
const minLen = 4

// forms returns the texts that give secret away, sorted: secret itself, its lines, and its encodings. None
// is shorter than minLen, nor is secret.
func forms(secret string) []string {
	whole := strings.Trim(secret, "\r\n") // often lost on the way, and no loss
	if len(whole) < minLen {
		whole = secret
	}
	all := []string{whole}
	if strings.ContainsAny(whole, "\r\n") {
		for line := range strings.FieldsFuncSeq(whole, func(c rune) bool { return c == '\n' || c == '\r' }) {
			all = append(all, strings.TrimSpace(line))
		}
	}
	all = appendBase64(all, secret)
	if whole != secret {
		all = appendBase64(all, whole)
	}
	all = appendPercent(all, whole)
	slices.Sort(all)
	all = slices.Compact(all)
	return slices.DeleteFunc(all, func(f string) bool { return len(f) < minLen })
}

// appendBase64 adds the base64 forms of secret, in both alphabets. Three bytes become four characters, so there are
// three forms, by the position of the secret in its text. Characters at its borders depend on the neighbours; they
// are left out, except the last one of a text that ends with the secret.
func appendBase64(all []string, secret string) []string {
	for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 {
			text := alphabet.EncodeToString(append(make([]byte, before), secret...))
			text = text[(8*before+5)/6:]
			inner := 8*(before+len(secret))/6 - (8*before+5)/6
			all = append(all, text, text[:inner])
		}
	}
	// Programs that write base64 break it into lines.
	text := base64.RawStdEncoding.EncodeToString([]byte(secret))
	for _, width := range []int{64, 76} {
		if len(text) > width {
			all = slices.AppendSeq(all, chunks(text, width))
		}
	}
	return all
}

// chunks cuts text into pieces of width bytes, the last of which may be shorter.
func chunks(text string, width int) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for len(text) > width {
			if !yield(text[:width]) {
				return
			}
			text = text[width:]
		}
		yield(text)
	}
}

// appendPercent adds the URL encodings of secret. They differ in the characters they encode (RFC 3986, section 2), in
// a space, and in the case of the digits.
func appendPercent(all []string, secret string) []string {
	for _, encode := range []func(string) string{
		url.QueryEscape,
		url.PathEscape,
		func(s string) string { return percent(s, "") },
		func(s string) string { return percent(s, "/") },     // Python's quote
		func(s string) string { return percent(s, "!'()*") }, // JavaScript's encodeURIComponent
	} {
		if text := encode(secret); text != secret {
			all = append(all, text, lowerPercent(text))
		}
	}
	return all
}

// percent encodes every byte of s but the unreserved ones and those in keep.
func percent(s, keep string) string {
	const hex = "0123456789ABCDEF"
	var out strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z',
			c >= 'A' && c <= 'Z',
			c >= '0' && c <= '9',
			strings.IndexByte("-._~", c) >= 0,
			strings.IndexByte(keep, c) >= 0:
			out.WriteByte(c)
		default:
			out.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return out.String()
}

// lowerPercent writes the digits of an encoded text in lower case.
func lowerPercent(s string) string {
	out := []byte(s)
	for i := 0; i+2 < len(out); i++ {
		if out[i] == '%' {
			copy(out[i:], strings.ToLower(s[i:i+3]))
			i += 2
		}
	}
	return string(out)
}

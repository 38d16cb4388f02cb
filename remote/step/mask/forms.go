package mask

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/stepmux/stepmux/internal/lazyregexp"
)

// minLen is the length of the shortest text that is masked, in bytes.
const minLen = 4

// forms returns the texts that reveal secret, sorted: secret itself, its lines, both as strings of JSON and as shells,
// languages and XML write them, and its encodings. Neither secret nor any of them is shorter than minLen.
func forms(secret string) []string {
	whole := strings.Trim(secret, "\r\n") // programs often cut off line ends; without them the secret is still found
	if len(whole) < minLen {
		whole = secret
	}
	all := []string{whole}
	if strings.ContainsAny(whole, "\r\n") {
		for line := range strings.FieldsFuncSeq(whole, func(c rune) bool { return c == '\n' || c == '\r' }) {
			all = append(all, strings.TrimSpace(line))
		}
	}
	all = slices.DeleteFunc(all, func(f string) bool { return len(f) < minLen }) // "&amp;" is in many texts
	for _, text := range slices.Clone(all) {
		all = appendQuoted(all, text)
		if utf8.ValidString(text) { // JSON does not keep other bytes
			all = appendJSON(all, text)
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

// shortEscapes puts a backslash before the characters that JSON and most languages escape so.
var shortEscapes = strings.NewReplacer(
	`"`, `\"`, `\`, `\\`, "\b", `\b`, "\f", `\f`, "\n", `\n`, "\r", `\r`, "\t", `\t`,
)

// appendJSON adds secret as strings of JSON (RFC 8259, section 7). Encoders differ in the characters that they write as
// \u: the special characters of HTML in Go, all beyond ASCII in Python. PHP also writes / as \/.
func appendJSON(all []string, secret string) []string {
	quoted := shortEscapes.Replace(secret)
	for _, digits := range []string{`\u%04x`, `\u%04X`} {
		for _, html := range []string{"", "<>&\u2028\u2029"} {
			for _, beyond := range []rune{unicode.MaxRune, unicode.MaxASCII} {
				var text strings.Builder
				for _, c := range quoted {
					if c >= ' ' && c <= beyond && !strings.ContainsRune(html, c) {
						text.WriteRune(c)
						continue
					}
					for _, unit := range utf16.AppendRune(nil, c) {
						fmt.Fprintf(&text, digits, unit)
					}
				}
				all = append(all, text.String(), strings.ReplaceAll(text.String(), "/", `\/`))
			}
		}
	}
	return all
}

// appendBase64 adds the base64 forms of secret, in both alphabets. Three bytes become four characters, so there are
// three forms, depending on the position of the secret in its text. Characters at its borders depend on the neighbours.
// They are left out, except for the last one of a text that ends with the secret.
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
			for line := range slices.Chunk([]byte(text), width) {
				all = append(all, string(line))
			}
		}
	}
	return all
}

// escape matches one byte that is URL-encoded.
var escape = lazyregexp.New("%[0-9A-F]{2}")

// componentMarks decodes the marks that JavaScript's encodeURIComponent does not encode.
var componentMarks = strings.NewReplacer("%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*")

// appendPercent adds the URL encodings of secret. They differ in the encoded characters (RFC 3986, section 2), in the
// encoding of a space, and in the case of the digits.
func appendPercent(all []string, secret string) []string {
	form := url.QueryEscape(secret)
	strict := strings.ReplaceAll(form, "+", "%20") // encodes all but the unreserved characters
	for _, text := range []string{
		form,
		url.PathEscape(secret),
		strict,
		strings.ReplaceAll(strict, "%2F", "/"), // Python's quote
		componentMarks.Replace(strict),
	} {
		if text != secret {
			all = append(all, text, escape().ReplaceAllStringFunc(text, strings.ToLower))
		}
	}
	return all
}

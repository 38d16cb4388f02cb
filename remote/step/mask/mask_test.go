package mask

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSecretsAreReplaced(t *testing.T) {
	s := newSet(t, "glpat-abcdef123456", "hunter22")
	for text, want := range map[string]string{
		"":                                   "",
		"nothing of it":                      "nothing of it",
		"token=glpat-abcdef123456\n":         "token=[MASKED]\n",
		"hunter22hunter22":                   "[MASKED][MASKED]",
		"hunter2 glpat-abcdef12345":          "hunter2 glpat-abcdef12345",
		"\x00\xff\r\nhunter22\x00":           "\x00\xff\r\n[MASKED]\x00",
		"glpat-abcdef12345glpat-abcdef12345": "glpat-abcdef12345glpat-abcdef12345",
		"hunterhunter22":                     "hunter[MASKED]",
	} {
		require.Equal(t, want, s.Mask(text))
		require.Equal(t, want, writeAll(t, s, text))
		require.Equal(t, want, writeAll(t, s, strings.Split(text, "")...))
	}
}

func TestOverlappingSecretsAreReplacedTogether(t *testing.T) {
	for _, c := range []struct {
		secrets    []string
		text, want string
	}{
		{[]string{"abcd", "abcdefgh"}, "abcdefgh abcdefg", "[MASKED] [MASKED]efg"},
		{[]string{"abcdef", "efghij"}, "abcdefghij", "[MASKED]"},
		{[]string{"cdef", "abcdefgh"}, "abcdefgh cdef", "[MASKED] [MASKED]"},
		{[]string{"bcdefghX", "defg", "ghij"}, "abcdefghij", "abc[MASKED]"},
		{[]string{"abab"}, "xababababx", "x[MASKED]x"},
		{[]string{"aaaa"}, "aaaaaaa aaa", "[MASKED] aaa"},
		{[]string{"abcdefgh", "efgh", "efghefgh"}, "abcdefghefgh", "[MASKED]"},
	} {
		s := newSet(t, c.secrets...)
		require.Equal(t, c.want, s.Mask(c.text))
		require.Equal(t, c.want, writeAll(t, s, strings.Split(c.text, "")...))
		require.Equal(t, c.want, plainly(s.patterns, c.text))
	}
}

func TestEncodedSecretsAreReplaced(t *testing.T) {
	secrets := []string{
		"p&ss/w?rd +1~",
		"\x00\xfe\xff\x03binary\xfb\xf0",
		"user@example.com:geheim!",
		"ends in two==",
		"(it's)*",
	}
	for _, secret := range secrets {
		s := newSet(t, secret)
		for before := range 4 {
			for after := range 4 {
				text := strings.Repeat("<", before) + secret + strings.Repeat(">", after)
				for _, alphabet := range []*base64.Encoding{
					base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding,
				} {
					got := s.Mask(alphabet.EncodeToString([]byte(text)))
					require.Contains(t, got, Replacement)
					// What is left cannot be more than what the neighbours have a share in.
					left := len(strings.Replace(strings.TrimRight(got, "="), Replacement, "", 1))
					require.LessOrEqual(t, left, (8*before+5)/6+(8*after+5)/6+1, "%q in %q", secret, text)
				}
			}
		}
		lower := strings.NewReplacer(
			"%2F",
			"%2f",
			"%3F",
			"%3f",
			"%2B",
			"%2b",
			"%FE",
			"%fe",
			"%FF",
			"%ff",
			"%FB",
			"%fb",
			"%F0",
			"%f0",
			"%3A",
			"%3a",
			"%3D",
			"%3d",
		)
		for name, encoded := range map[string]string{
			"query":      url.QueryEscape(secret),
			"path":       url.PathEscape(secret),
			"lower case": lower.Replace(url.QueryEscape(secret)),
			"%20":        strings.ReplaceAll(url.QueryEscape(secret), "+", "%20"),
			"userinfo":   strings.ReplaceAll(url.QueryEscape(secret), "+", "%20"),
		} {
			require.Equal(t, "x=[MASKED]&y", s.Mask("x="+encoded+"&y"), name)
		}
	}
	require.Equal(t, "[MASKED]", newSet(t, "(a b)/c!").Mask("(a%20b)%2Fc!"), "as JavaScript does")
	require.Equal(t, "[MASKED]", newSet(t, "(a b)/c!").Mask("%28a%20b%29/c%21"), "as Python does")
}

func TestWrappedBase64OfALongSecretIsReplaced(t *testing.T) {
	secret := strings.Repeat("0123456789abcdef~", 20)
	s := newSet(t, secret)
	for _, width := range []int{64, 76} {
		for text := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString([]byte(secret))), width) {
			require.Equal(t, "[MASKED]\n", strings.ReplaceAll(s.Mask(string(text)+"\n"), "=", ""))
		}
	}
}

func TestLinesOfASecretAreReplaced(t *testing.T) {
	s := newSet(t, "line-one-secret\r\n  line-two-secret\n}\n")
	require.Equal(t, "a [MASKED] b [MASKED] }", s.Mask("a line-one-secret b line-two-secret }"))
	require.Equal(t, "[MASKED]\n", writeAll(t, s, "line-one-secret\r\n", "  line-two-secret\n", "}\n"), "all of it is one")
	require.Equal(t, "[MASKED]", newSet(t, "geheim\n").Mask("geheim"), "programs lose the end of a line")
}

func TestShortSecretsAreNotMaskedAndThatIsSaid(t *testing.T) {
	s := &Set{}
	require.ErrorIs(t, s.Add(""), ErrShort)
	require.ErrorIs(t, s.Add("abc"), ErrShort)
	require.Equal(t, "abc", s.Mask("abc"))
	require.NoError(t, s.Add("abcd"))
	require.Equal(t, "abc [MASKED]", s.Mask("abc abcd"))
}

func TestSetIsBounded(t *testing.T) {
	s := &Set{limit: 100_000}
	value := func(n int) string { return strings.Repeat(fmt.Sprintf("value %d, ", n), 100) }
	require.ErrorIs(t, s.Add(strings.Repeat("x", 100_001)), ErrFull)
	require.ErrorIs(t, s.Add(strings.Repeat("x", 24_999)), ErrFull, "its other forms count too")
	require.Equal(t, "xxxx", s.Mask("xxxx"))
	added := 0
	for s.Add(value(added)) == nil {
		added++
	}
	require.Positive(t, added)
	require.ErrorIs(t, s.Add(value(added)), ErrFull)
	require.NoError(t, s.Add(value(0)), "it is there already")
	require.Equal(t, "[MASKED]", s.Mask(value(added-1)), "what fits is masked")
	require.LessOrEqual(t, len(s.automaton().label), 100_001)
	require.ErrorIs(t, new(Set).Add(strings.Repeat("x", maxNodes+1)), ErrFull)
}

func TestWriterHoldsBackOnlyTheBeginningOfASecret(t *testing.T) {
	var out bytes.Buffer
	w := newSet(t, "geheim", "heimat!!").NewWriter(&out)
	for _, c := range []struct{ write, want string }{
		{"prompt> ", "prompt> "},
		{"gehei", "prompt> "},
		{"t", "prompt> geheit"},
		{"gehei", "prompt> geheit"},
		{"m", "prompt> geheit[MASKED]"}, // heim is held: it may be of the other secret
		{"a", "prompt> geheit[MASKED]"},
		{"x", "prompt> geheit[MASKED]ax"},
		{"geheim", "prompt> geheit[MASKED]ax[MASKED]"},
		{"at!!", "prompt> geheit[MASKED]ax[MASKED]"},
		{"geh", "prompt> geheit[MASKED]ax[MASKED]"},
	} {
		_, err := w.Write([]byte(c.write))
		require.NoError(t, err)
		require.Equal(t, c.want, out.String(), "after %q", c.write)
	}
	require.NoError(t, w.Close())
	require.Equal(t, "prompt> geheit[MASKED]ax[MASKED]geh", out.String())
}

func TestSecretsLargerThanAnyWriteAreReplaced(t *testing.T) {
	secret := strings.Repeat("0123456789", 20_000)
	s := newSet(t, secret)
	text := strings.Repeat("0123456789", 1000) + "|" + secret + "|" + secret[:len(secret)-1] + "|"
	var pieces []string
	for piece := range slices.Chunk([]byte(text), 1000) {
		pieces = append(pieces, string(piece))
	}
	want := strings.Repeat("0123456789", 1000) + "|[MASKED]|" + secret[:len(secret)-1] + "|"
	require.Equal(t, want, writeAll(t, s, pieces...))
	require.Equal(t, want, writeAll(t, s, text))
}

func TestSetGrowsWhileAStreamRuns(t *testing.T) {
	var out bytes.Buffer
	s := newSet(t, "first-secret")
	w := s.NewWriter(&out)
	write := func(text string) {
		_, err := w.Write([]byte(text))
		require.NoError(t, err)
	}
	write("second-secret first-secret first-sec")
	require.NoError(t, s.Add("second-secret"))
	write("ret second-secret first-sec")
	require.NoError(t, s.Add("secondary"))
	require.NoError(t, s.Add("ret!ret!"))
	write("retary second-secretary first-secret!ret!")
	require.NoError(t, w.Close())
	require.Equal(t, "second-secret [MASKED] [MASKED] [MASKED] [MASKED]ary [MASKED]ary [MASKED]", out.String())
}

func TestSecretHeldBackIsMaskedThoughTheSetGrowsMeanwhile(t *testing.T) {
	// The end of the first secret has been replaced and may be the beginning of another when a third comes.
	var out bytes.Buffer
	s := newSet(t, "abcdefgh", "ghijklmn")
	w := s.NewWriter(&out)
	for _, piece := range []string{"abcdefghi", "jk", "lmn|"} {
		_, err := w.Write([]byte(piece))
		require.NoError(t, err)
		require.NoError(t, s.Add("another one "+piece))
	}
	require.NoError(t, w.Close())
	require.Equal(t, "[MASKED]|", out.String())
}

func TestSetIsSafeForConcurrentUse(t *testing.T) {
	s := &Set{}
	var out bytes.Buffer
	w := s.NewWriter(&out)
	var wg sync.WaitGroup
	for i := range 8 {
		secret := fmt.Sprintf("secret-%d-of-many", i)
		wg.Go(func() {
			require.NoError(t, s.Add(secret))
			require.Equal(t, "[MASKED]", s.Mask(secret))
			_, err := w.Write([]byte(secret + "\n"))
			require.NoError(t, err)
		})
	}
	wg.Wait()
	require.NoError(t, w.Close())
	require.Equal(t, strings.Repeat("[MASKED]\n", 8), out.String())
}

// places records where the slices it is given are.
type places struct{ at []*byte }

func (s *places) Write(p []byte) (int, error) {
	s.at = append(s.at, &p[0])
	return len(p), nil
}

func TestBytesAreNotCopiedWithoutNeed(t *testing.T) {
	text := []byte("some text of no interest\n")
	for name, s := range map[string]*Set{"no secrets": {}, "no hit": newSet(t, "hunter22")} {
		var to places
		w := s.NewWriter(&to)
		_, err := w.Write(text)
		require.NoError(t, err)
		require.Equal(t, []*byte{&text[0]}, to.at, name)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			to.at = to.at[:0]
			_, _ = w.Write(text)
		}), name)
	}
}

func TestWriterReturnsTheErrorsOfWhereItWritesTo(t *testing.T) {
	for _, secrets := range [][]string{nil, {"hunter22"}} {
		broken := errors.New("broken")
		w := newSet(t, secrets...).NewWriter(writerFunc(func([]byte) (int, error) { return 0, broken }))
		n, err := w.Write([]byte("x"))
		require.ErrorIs(t, err, broken)
		require.Zero(t, n)
		require.ErrorIs(t, w.Close(), broken)
		_, err = w.Write([]byte("x"))
		require.ErrorIs(t, err, broken)

		w = newSet(t, secrets...).NewWriter(writerFunc(func([]byte) (int, error) { return 0, nil }))
		_, err = w.Write([]byte("x"))
		require.ErrorContains(t, err, "short write")
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestNothingCanBeWrittenAfterClose(t *testing.T) {
	var out bytes.Buffer
	w := newSet(t, "hunter22").NewWriter(&out)
	_, err := w.Write([]byte("hunter"))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())
	_, err = w.Write([]byte("22"))
	require.ErrorIs(t, err, fs.ErrClosed)
	require.Equal(t, "hunter", out.String())
}

func TestLargeSetsFindAll(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	s := &Set{}
	var text strings.Builder
	for i := range 300 {
		// Of two letters: they begin alike and overlap.
		secret := make([]byte, 8+r.IntN(30))
		for j := range secret {
			secret[j] = "ab"[r.IntN(2)]
		}
		require.NoError(t, s.Add(string(secret)))
		text.Write(secret[:len(secret)-i%2])
		text.WriteByte("ab-"[r.IntN(3)])
	}
	want := plainly(s.patterns, text.String())
	require.Equal(t, want, s.Mask(text.String()))
	require.Equal(t, want, writeAll(t, s, strings.Split(text.String(), "")...))
}

// Symptom: with two secrets that have a form in common, and a third one, the forms were compacted in the Set's own
// list, whose end then had empty forms.
func TestASecretWithAFormOfAnEarlierOneLeavesTheOthersMasked(t *testing.T) {
	s := newSet(t, "first-secret")
	require.Equal(t, "[MASKED]", s.Mask("first-secret"))
	require.NoError(t, s.Add("first-secret\n"))
	require.Equal(t, "[MASKED]", s.Mask("first-secret"))
	require.NoError(t, s.Add("second-secret"))
	require.Equal(t, "[MASKED] [MASKED]", s.Mask("first-secret second-secret"))
}

// Symptom: a program that writes JSON, or quotes a text, showed all of a secret except for the characters after a
// backslash.
//
//stepmux:faults engine | A secret is masked as it is, and readable as a string of JSON
func TestSecretsAreReplacedAsTextsOfJSONHaveThem(t *testing.T) {
	const secret = "pa\"ss\\wo\trd<&>/ä€😀\u2028\x7f" + `\u00ff`
	s := newSet(t, secret)
	for name, text := range map[string]string{
		"as it is":             secret,
		"quoted, as jq does":   `pa\"ss\\wo\trd<&>/ä€😀` + "\u2028\x7f" + `\\u00ff`,
		"Go":                   `pa\"ss\\wo\trd\u003c\u0026\u003e/ä€😀\u2028` + "\x7f" + `\\u00ff`,
		"Python":               `pa\"ss\\wo\trd<&>/\u00e4\u20ac\ud83d\ude00\u2028` + "\x7f" + `\\u00ff`,
		"HTML and ASCII":       `pa\"ss\\wo\trd\u003c\u0026\u003e/\u00e4\u20ac\ud83d\ude00\u2028` + "\x7f" + `\\u00ff`,
		"digits in upper case": `pa\"ss\\wo\trd\u003C\u0026\u003E/\u00E4\u20AC\uD83D\uDE00\u2028` + "\x7f" + `\\u00ff`,
		"PHP":                  `pa\"ss\\wo\trd<&>\/\u00e4\u20ac\ud83d\ude00\u2028` + "\x7f" + `\\u00ff`,
	} {
		require.Equal(t, `{"token":"[MASKED]"}`, s.Mask(`{"token":"`+text+`"}`), name)
		require.Equal(t, "x[MASKED]y", writeAll(t, s, "x"+text[:5], text[5:]+"y"), name)
	}
	key := newSet(t, "-----BEGIN KEY-----\nab\"cd\n-----END KEY-----\n")
	require.Equal(t, `"[MASKED]\n"`, key.Mask(`"-----BEGIN KEY-----\nab\"cd\n-----END KEY-----\n"`))
	require.Equal(t, `["[MASKED]","[MASKED]"]`, key.Mask(`["-----BEGIN KEY-----","ab\"cd"]`), "line by line")
	require.Equal(t, []string{"no-escapes"}, slices.DeleteFunc(forms("no-escapes"), func(f string) bool {
		return !strings.Contains(f, "escapes")
	}), "costs nothing where nothing is escaped")
}

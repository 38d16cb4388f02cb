package trace

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/gowebpki/jcs"
	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/mask"
)

// value returns x as a value.
func value(t testing.TB, x any) expr.Value {
	t.Helper()
	v, err := expr.New(x)
	require.NoError(t, err)
	return v
}

// canonicalOf returns the canonical form of x in the canonical form of an identity with the output x.
func canonicalOf(t testing.TB, x expr.Value) string {
	t.Helper()
	data, err := (&Identity{Outputs: mask.Values{"x": {Value: x}}}).Canonical()
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(data), `"outputs":{"x":`)
	require.True(t, found)
	text, _, found := strings.Cut(rest, `},"runtime"`)
	require.True(t, found)
	return text
}

// The numbers of RFC 8785, appendix B.
func TestNumbersAreCanonical(t *testing.T) {
	for bits, want := range map[uint64]string{
		0x0000000000000000: "0", 0x8000000000000000: "0",
		0x0000000000000001: "5e-324", 0x8000000000000001: "-5e-324",
		0x7fefffffffffffff: "1.7976931348623157e+308", 0xffefffffffffffff: "-1.7976931348623157e+308",
		0x4340000000000000: "9007199254740992", 0xc340000000000000: "-9007199254740992",
		0x4430000000000000: "295147905179352830000", 0x44b52d02c7e14af5: "9.999999999999997e+22",
		0x44b52d02c7e14af6: "1e+23", 0x44b52d02c7e14af7: "1.0000000000000001e+23",
		0x444b1ae4d6e2ef4e: "999999999999999700000", 0x444b1ae4d6e2ef4f: "999999999999999900000",
		0x444b1ae4d6e2ef50: "1e+21", 0x3eb0c6f7a0b5ed8c: "9.999999999999997e-7",
		0x3eb0c6f7a0b5ed8d: "0.000001", 0x41b3de4355555553: "333333333.3333332",
		0x41b3de4355555554: "333333333.33333325", 0x41b3de4355555555: "333333333.3333333",
		0x41b3de4355555556: "333333333.3333334", 0x41b3de4355555557: "333333333.33333343",
		0xbecbf647612f3696: "-0.0000033333333333333333", 0x43143ff3c1cb0959: "1424953923781206.2",
	} {
		require.Equal(t, want, canonicalOf(t, value(t, math.Float64frombits(bits))), "%x", bits)
	}
}

// The example of RFC 8785, section 3.2.2, whose canonical form is in 3.2.4.
func TestTextsAndKeysAreCanonical(t *testing.T) {
	var v expr.Value
	require.NoError(t, json.Unmarshal([]byte(`{
		"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
		"string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
		"literals": [null, true, false]
	}`), &v))
	const want = "7b226c69746572616c73223a5b6e756c6c2c747275652c66616c73655d2c226e756d62657273223a5b333333333333333333" +
		"2e333333333333332c31652b33302c342e352c302e3030322c31652d32375d2c22737472696e67223a22e282ac245c753030" +
		"30665c6e4127425c225c5c5c5c5c222f227d"
	require.Equal(
		t,
		want,
		hex.EncodeToString([]byte(canonicalOf(t, v))),
	)
}

// Keys are sorted by their UTF-16 code units, by which a character beyond the first plane comes before U+FB33: RFC
// 8785, section 3.2.3.
func TestKeysAreSortedByTheirCodeUnits(t *testing.T) {
	v := value(t, map[string]any{"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7})
	require.Equal(
		t,
		"{\"\\r\":2,\"1\":4,\"\u0080\":6,\"\u00f6\":7,\"\u20ac\":1,\"\U0001f600\":5,\"\ufb33\":3}",
		canonicalOf(t, v),
	)
}

func TestEncodedTraceIsCanonical(t *testing.T) {
	data, err := sample(t).Encode()
	require.NoError(t, err)
	again, err := jcs.Transform(data)
	require.NoError(t, err)
	require.Equal(t, string(again)+"\n", string(data))
}

// Package jcs is the reference.
func TestCanonicalFormIsThatOfTheReference(t *testing.T) {
	t.Parallel()
	parts := []string{
		"", "a", "\"", "\\", "/", "<", "\x7f", "\u2028", "\u00e9", "\ud7ff", "\ue000", "\ufb33", "\uffff",
		"\U00010000", "\U0001f600", "\U0010ffff", "\xff",
	}
	for c := range rune(' ') {
		parts = append(parts, string(c))
	}
	object := map[string]any{}
	for _, a := range parts {
		for i, b := range parts {
			object[a+b] = []any{b + a, i, -i, math.Ldexp(1.1, 40*i-1000), -1e-7 * float64(i), int64(math.MaxInt64) - int64(i)}
		}
	}
	object["rest"] = []any{true, false, nil, math.Copysign(0, -1), map[string]any{}, []any{}}
	data, err := json.Marshal(object)
	require.NoError(t, err)
	want, err := jcs.Transform(data)
	require.NoError(t, err)
	is, err := rewrite(data)
	require.NoError(t, err)
	require.Equal(t, string(want), string(is))
}

func TestIDIsOfTheIdentityAlone(t *testing.T) {
	a, b := sample(t), sample(t)
	b.Volatile.PID, b.Volatile.Host = 7, "elsewhere"
	encode := func(x *Trace) string {
		_, err := x.Encode()
		require.NoError(t, err)
		return x.ID
	}
	require.Equal(t, encode(a), encode(b))
	b.Identity.ExitCode = new(1)
	require.NotEqual(t, encode(a), encode(b))
}

package wire

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSecretsDifferAndSurviveTheWire(t *testing.T) {
	seen := map[Secret]bool{}
	for range 1000 {
		s := NewSecret()
		require.False(t, seen[s])
		seen[s] = true
		line, ended := strings.CutSuffix(string(s.Line()), "\n")
		require.True(t, ended)
		require.LessOrEqual(t, len(line)+1, MaxSecretLine)
		back, err := ParseSecret(line)
		require.NoError(t, err)
		require.Equal(t, s, back)
		require.True(t, s.Verifier().Admits([]string{s.Authorization()}))
	}
}

func TestOnlyTheSecretItselfIsAdmitted(t *testing.T) {
	s := NewSecret()
	right := s.Authorization()
	text := strings.TrimPrefix(right, "Bearer ")
	for _, wrong := range [][]string{
		nil,
		{""},
		{"Bearer "},
		{text},
		{"bearer " + text},
		{"Basic " + text},
		{"Bearer  " + text},
		{right + " "},
		{right + "A"},
		{right[:len(right)-1]},
		{strings.ToUpper(right)},
		{NewSecret().Authorization()},
		{right, right},
		{"Bearer x", right},
	} {
		require.False(t, s.Verifier().Admits(wrong), "%q", wrong)
	}
	require.False(t, Verifier{}.Admits([]string{"Bearer "}))
	require.False(t, Secret{}.Verifier().Admits(nil))
}

func TestMalformedSecretIsRefusedAndNotQuoted(t *testing.T) {
	for _, line := range []string{
		"",
		"short",
		strings.Repeat("x", minSecretLength-1),
		strings.Repeat("x", maxSecretLength+1),
		strings.Repeat("x", minSecretLength) + "\r",
		strings.Repeat("x", minSecretLength) + "\x00",
		strings.Repeat("x", minSecretLength) + "=",
		strings.Repeat("é", minSecretLength),
		"xyz " + strings.Repeat("x", minSecretLength),
	} {
		_, err := ParseSecret(line)
		require.Error(t, err, "%q", line)
		require.NotContains(t, err.Error(), "xyz")
	}
}

func TestASecretIsNotPrintedByAccident(t *testing.T) {
	s := NewSecret()
	holder := struct{ Secret Secret }{s}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("start", "secret", s)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("start", "secret", s, "holder", holder)
	text := fmt.Sprintf("%v %+v %#v %s %q", s, s, s, s, s) + fmt.Sprintf(
		"%v %+v %#v", holder, holder, &holder,
	) + log.String()
	require.NotContains(t, text, s.text)
	require.True(t, Secret{}.IsZero())
	require.False(t, s.IsZero())
}

package lang

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/remote/step/expr"
)

func TestLiteralIsTheTextOfATemplateWithoutExpressions(t *testing.T) {
	for template, want := range map[string]string{
		"": "", "plain $X ${X} $ }}": "plain $X ${X} $ }}", `\${{ x }}`: "${{ x }}", `a\\${{`: `a\${{`, `\$ \{{`: `\$ \{{`,
	} {
		got, ok := Literal(template)
		require.True(t, ok, template)
		require.Equal(t, want, got)
	}
	for _, template := range []string{"${{ x }}", "${{", `\${{ a ${{ b }}`, "$${{"} {
		_, ok := Literal(template)
		require.False(t, ok, template)
	}
}

func FuzzEscape(f *testing.F) {
	for _, seed := range []string{"", "a", "${{", `\${{`, `\\${{ x }}`, "$${{{{", "${{${{"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		template := Escape(text)
		got, ok := Literal(template)
		require.True(t, ok)
		require.Equal(t, text, got)
		parsed, err := expr.ParseTemplate(template)
		require.NoError(t, err)
		value, err := parsed.Eval(nil)
		require.NoError(t, err)
		require.Equal(t, text, value.Text())
	})
}

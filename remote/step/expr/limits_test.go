package expr

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/testing/racefree"
)

//stepmux:faults input | Expressions made to exhaust their evaluation
//stepmux:with remote/step/expr.TestAnExpressionNestsAtMost100Deep
//stepmux:with remote/step/expr.TestAnEvaluationDoesAtMost256MiBOfWork
func TestAnExpressionHasAtMost64KiB(t *testing.T) {
	within := strings.Repeat(" ", maxExpr-len("1}}")) + "1}}"
	require.Equal(t, "1", eval(t, nil, "${{"+within).Text())
	require.Equal(t, "1 1", eval(t, nil, "${{"+within+" ${{"+within).Text(), "each by itself")
	for _, text := range []string{
		"${{ " + within, "${{" + strings.Repeat(" ", maxExpr-1) + "}}", "${{ '" + strings.Repeat("a", maxExpr) + "' }}",
		"${{ " + strings.Repeat("a", maxExpr) + " }}", "${{ \"" + strings.Repeat("ä", maxExpr) + "\" }}",
	} {
		require.EqualError(t, evalError(t, nil, "ä"+text), "1:2: the expression has more than 64 KiB")
	}
	_, err := Parse(strings.Repeat(" ", maxExpr) + "1")
	require.EqualError(t, err, "1:1: the expression has more than 64 KiB")
}

func TestAnExpressionNestsAtMost100Deep(t *testing.T) {
	for _, pair := range [][2]string{
		{"(", ")"},
		{"[", "]"},
		{"{a:", "}"},
		{"!", ""},
		{"- ", ""},
		{"str(", ")"},
		{"a[", "]"},
		{"{(", "):1}"},
		{`"${{`, `}}"`},
	} {
		deep := func(n int) string { return strings.Repeat(pair[0], n) + "1" + strings.Repeat(pair[1], n) }
		_, err := Parse(deep(maxDepth - 1))
		require.NoError(t, err, pair[0])
		for _, n := range []int{maxDepth, 20000} {
			if n*len(deep(1)) > maxExpr {
				n = maxExpr / len(deep(1))
			}
			_, err = Parse(deep(n))
			require.ErrorContains(t, err, "the expression nests more than 100 deep", pair[0])
		}
	}
}

func TestALongChainIsNotDeep(t *testing.T) {
	require.Equal(t, "21844", eval(t, nil, "${{1"+strings.Repeat("+ 1", maxExpr/3-2)+"}}").Text())
	require.Equal(t, "1", eval(t, nil, "${{"+strings.Repeat("0||", maxExpr/3-2)+"1}}").Text())
	err := evalError(t, nil, "${{[]"+strings.Repeat(".a", maxExpr/2-4)+"}}")
	require.ErrorContains(t, err, "the value is an array, which has no keys")
}

func TestAValueHasAtMost16MiB(t *testing.T) {
	racefree.Only(t)
	half := value(t, strings.Repeat("a", maxSize/2))
	s := Scope{"half": half, "rest": value(t, "a"), "ctrl": value(t, strings.Repeat("\x01", maxSize/4))}
	require.Len(t, eval(t, s, "${{ half + half }}").Text(), maxSize)
	require.Len(t, eval(t, s, "${{ half }}${{ half }}").Text(), maxSize)
	for _, text := range []string{
		"${{ half + half + rest }}", "${{ half }}a${{ half }}", `${{ "a${{ half }}${{ half }}" }}`, "${{ [half, half] }}",
		"${{ {a: half, b: half} }}", "${{ str([ctrl]) }}",
	} {
		require.ErrorContains(t, evalError(t, s, text), "the value has more than 16 MiB", text)
	}
	_, err := ParseTemplate(strings.Repeat("a", maxSize+1))
	require.EqualError(t, err, "1:1: the text has more than 16 MiB")
}

func TestAnEvaluationDoesAtMost256MiBOfWork(t *testing.T) {
	racefree.Only(t)
	s := Scope{
		"big": value(t, strings.Repeat("a", 1<<20)), "small": value(t, strings.Repeat("a", 1<<10)),
		"big2": value(t, strings.Repeat("a", 1<<20)),
	}
	for _, text := range []string{
		"${{ big == big2" + strings.Repeat(" && big == big2", 1000) + " }}",
		"${{ small" + strings.Repeat("+small", 9000) + " }}",
		"${{ str([big]) == '' || " + strings.Repeat("str([big]) == '' || ", 1000) + "1 }}",
	} {
		require.ErrorContains(t, evalError(t, s, text), "the evaluation reads and writes more than 256 MiB", text[:20])
	}
}

// deep returns n nested arrays.
func deep(n int) any {
	var x any = []any{}
	for range n - 1 {
		x = []any{x}
	}
	return x
}

func TestAValueHasAtMost100Levels(t *testing.T) {
	v := value(t, deep(maxDepth))
	require.ErrorContains(t, evalError(t, Scope{"v": v}, "${{ [v] }}"), "the value has more than 100 levels")
	require.ErrorContains(t, evalError(t, Scope{"v": v}, "${{ {a: v} }}"), "the value has more than 100 levels")
	_, err := New(deep(maxDepth + 1))
	require.ErrorIs(t, err, errDepth)
	_, err = New([]Value{v})
	require.ErrorIs(t, err, errDepth)
}

func TestNewRefusesSharedValuesThatAreTooLargeTogether(t *testing.T) {
	cycle := map[string]any{}
	cycle["a"], cycle["b"] = cycle, cycle
	_, err := New(cycle)
	require.ErrorIs(t, err, errDepth)

	var shared any = strings.Repeat("a", 1000)
	for range 50 {
		shared = []any{shared, shared, shared}
	}
	_, err = New(shared)
	require.ErrorIs(t, err, errSize)
	_, err = New(map[string]string{strings.Repeat("a", maxSize): ""})
	require.ErrorIs(t, err, errSize)
	_, err = New(strings.Repeat("a", maxSize+1))
	require.ErrorIs(t, err, errSize)
}

// The limit of a variable was on no page.
func TestThePageHasTheLimits(t *testing.T) {
	page, err := os.ReadFile("../../../docs/language.md")
	require.NoError(t, err)
	text := strings.Join(strings.Fields(string(page)), " ")
	for _, limit := range []string{
		fmt.Sprintf("An expression has at most %d KiB and nests at most %d deep.", maxExpr>>10, maxDepth),
		fmt.Sprintf("A value, also that of a variable, has at most %d MiB and %d levels, and one evaluation reads and "+
			"writes at most %d MiB.", maxSize>>20, maxDepth, maxWork>>20),
	} {
		require.Contains(t, text, limit)
	}
}

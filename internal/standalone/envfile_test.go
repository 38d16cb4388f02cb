package standalone_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stepmux/stepmux/internal/standalone"
)

func TestVariablesOfAnEnvFileAreReadAsDockerDoes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "job.env")
	read := func(text string) ([]string, error) {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return standalone.ReadEnvFiles([]string{file}, func(name string) (string, bool) { return "here", name == "HERE" })
	}
	vars, err := read("\ufeffA=1\r\n\n # a comment\n\tB='x y' # z \nHERE\nGONE\nC=\nA=a=b\nLAST=no newline")
	require.NoError(t, err)
	require.Equal(t, []string{"B='x y' # z ", "HERE=here", "C=", "A=a=b", "LAST=no newline"}, vars)
	many := strings.Builder{}
	for i := range 10_001 {
		many.WriteString("V" + strconv.Itoa(i) + "=\n")
	}
	for text, want := range map[string]string{
		"A=1\nB C=2\n":                    `job.env:2: the variable name "B C" is not valid`,
		"=1\n":                            "job.env:1: the variable name is not valid",
		"export A=1\n":                    `job.env:1: the variable name "export A" is not valid`,
		"A=\xff\n":                        "job.env:1: the line is not valid UTF-8",
		"A=\x00\n":                        "zero byte",
		"A=" + strings.Repeat("x", 1<<20): "it has more than 1 MiB",
		many.String():                     "job.env:10001: there are more than 10000 variables",
	} {
		_, err := read(text)
		require.ErrorContains(t, err, want)
	}
}

package remote

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckStepsNamesThePlaceOfAMistake(t *testing.T) {
	require.NoError(t, CheckSteps("hello.yml", []byte("run:\n  - name: hello\n    script: echo hello\n")))
	err := CheckSteps("hello.yml", []byte("run:\n  - name: hello\n    scrpt: echo hello\n"))
	require.ErrorContains(t, err, "hello.yml:3:5: ")
	require.ErrorContains(t, err, "scrpt")
	require.Error(t, CheckSteps("empty.yml", nil))
}

func TestCheckStepsRefusesMoreThanMaxSteps(t *testing.T) {
	text := []byte("run:\n  - script: echo hello\n")
	filler := bytes.Repeat([]byte("#"), MaxSteps-len(text))
	require.NoError(t, CheckSteps("x.yml", append(text, filler...)))
	require.Error(t, CheckSteps("x.yml", append(append(text, filler...), '#')))
}

package instance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stepmux/stepmux/internal/testing/dockertest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && filepath.Base(os.Args[0]) == toolName {
		os.Exit(tool(os.Args[1:]))
	}
	if target := os.Getenv(attackVar); target != "" {
		if err := attack(target); err != nil {
			fmt.Fprintln(os.Stdout, "the attack failed:", err)
			os.Exit(1)
		}
		return
	}
	dockertest.Main(m)
}

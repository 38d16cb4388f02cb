package instance_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stepmux/stepmux/internal/runnertest"
)

func TestMain(m *testing.M) {
	if target := os.Getenv(attackVar); target != "" {
		if err := attack(target); err != nil {
			fmt.Fprintln(os.Stdout, "the attack failed:", err)
			os.Exit(1)
		}
		return
	}
	runnertest.Main(m)
}

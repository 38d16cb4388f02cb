package instance_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stepmux/stepmux/internal/dockertest"
)

func TestMain(m *testing.M) {
	if target := os.Getenv(attackVar); target != "" {
		if err := attack(target); err != nil {
			fmt.Fprintln(os.Stdout, "the attack failed:", err)
			os.Exit(1)
		}
		return
	}
	dockertest.Main(m)
}

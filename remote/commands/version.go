package commands

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/stepmux/stepmux/internal/buildinfo"
)

var versionText = command{
	name:  "version [--checksum]",
	short: "Print the version, the commit and the version of the relay's protocol",
}

func (p Program) version(fl *pflag.FlagSet) Runner {
	checksum := fl.Bool("checksum", false, "also print the SHA-256 of the program's file")
	return func(_ context.Context, _ []string) (int, error) {
		text := buildinfo.Text()
		if p.gitLab {
			text = buildinfo.GitLabText(p.report)
		}
		if p.Carries != nil {
			text += "Carries: " + p.Carries() + "\n"
		}
		if *checksum {
			sum, err := buildinfo.Checksum()
			if err != nil {
				return 0, err
			}
			text += "SHA-256: " + sum + "\n"
		}
		_, err := fmt.Fprint(os.Stdout, text)
		return 0, err
	}
}

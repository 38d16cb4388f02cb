package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stepmux/stepmux/internal/standalone"
)

// noWorkflow are the flags of a whole pipeline that have no meaning for a workflow, with the reasons.
var noWorkflow = map[string]string{
	"manual": "its jobs do not wait for anybody", "stage": "it has no stages", "wait-delayed": "its jobs have no delays",
	"report-junit": "its jobs report no tests", "changed-since": "it has no rules",
}

// isPipeline reports whether src has the jobs of a pipeline.
func isPipeline(src standalone.Source) bool {
	return src.Format == standalone.GitHub || src.Format == standalone.GitLabCI
}

// checkFormat returns an error about flags of pipelines that have no meaning for the format of src.
func checkFormat(cmd *cobra.Command, src standalone.Source) error {
	for _, name := range append(slices.Clone(wholeNames), "event", "changed-since") {
		switch why, is := noWorkflow[name]; {
		case !cmd.Flags().Changed(name):
		case src.Format == standalone.GitHub && is:
			return fmt.Errorf("--%s has no meaning for a workflow: %s", name, why)
		case !isPipeline(src):
			return fmt.Errorf("--%s is for a .gitlab-ci.yml or a workflow (--format gitlab-ci or github)", name)
		}
	}
	return nil
}

// workflowEvent sets the event of a workflow to the one in text: its name, and perhaps a file with its payload.
func workflowEvent(src *standalone.Source, text string, stdin io.Reader) (err error) {
	if text == "" {
		return nil
	}
	name, file, hasFile := strings.Cut(text, "=")
	if !standalone.IsEventName(name) {
		return fmt.Errorf("--event: %.64q is no event; write its name, as push, or NAME=FILE with its payload in JSON", name)
	}
	if src.Event = name; !hasFile {
		return nil
	}
	if src.Payload, err = standalone.ReadFile(file, stdin); err != nil {
		return fmt.Errorf("--event: %w", err)
	}
	if err := standalone.CheckPayload(src.Payload); err != nil {
		return fmt.Errorf("--event: %s: %w", file, err)
	}
	return nil
}

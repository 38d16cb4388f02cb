// Package githubpipeline reads a workflow of GitHub Actions as a pipeline for package whole. [Read] does it. A job of
// the workflow opens into its builds when all that it needs has ended: only then its if and its matrix are known.
package githubpipeline

package fetch

import "github.com/stepmux/stepmux/remote/step/component"

// With these names the callers of a Store need no other import.
type (
	// Source is component.Source.
	Source = component.Source
	// Component is component.Component.
	Component = component.Component
	// Credentials is component.Credentials.
	Credentials = component.Credentials
	// Login is component.Login.
	Login = component.Login
)

type node = component.Node

const (
	kindGit = component.KindGit
	kindZip = component.KindZip
	kindOCI = component.KindOCI

	modeFile       = component.ModeFile
	modeExecutable = component.ModeExecutable
	modeSymlink    = component.ModeSymlink
	modeDir        = component.ModeDir
)

package fetch

import "github.com/stepmux/stepmux/remote/step/component"

// Callers of a Store need no other import.
type (
	Source      = component.Source
	Component   = component.Component
	Credentials = component.Credentials
	Login       = component.Login
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

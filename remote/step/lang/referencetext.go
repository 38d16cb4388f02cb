package lang

import (
	"errors"
	"net/url"
	"path"
	"strings"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// ParseReference reads the short form of a reference:
//
//	./dir  ../dir/step.yml  /dir                   a directory, or a file in it
//	host/group/project[/-/dir[/file.yml]]@rev      a directory below steps of a git repository
//	host/group/image:tag [dir/file.yml]            an image of an OCI registry; @sha256:.. for :tag or after it
//	zip+https://host/steps.zip#sha256=..&dir=..    an archive
//	zip+./steps.zip#dir=..                         an archive on this machine, also as zip+file:///dir/steps.zip
//	builtin://script                               a built-in step
//
// Errors do not repeat the reference, which may hold credentials.
func ParseReference(text string) (*pb.Reference, error) {
	if name, found := aliases[text]; found {
		return &pb.Reference{Protocol: pb.Reference_builtin, Path: name}, nil
	}
	scheme, rest, hasScheme := strings.Cut(text, "://")
	switch {
	case text == "":
		return nil, errors.New("the reference is empty; write where the step is, such as ./build")
	case strings.HasPrefix(text, "-"):
		return nil, errors.New("the reference is invalid: it begins with -")
	case hasControl(text):
		return nil, errors.New("the reference is invalid: it holds a control character")
	case isLocal(text):
		dir, file := splitFile(strings.TrimRight(text, "/"))
		if dir == "" {
			dir = "/"
		}
		return &pb.Reference{Protocol: pb.Reference_local, Path: dir, File: file}, nil
	case hasScheme && (scheme == "builtin" || scheme == "dist"):
		return &pb.Reference{Protocol: pb.Reference_builtin, Path: rest}, nil
	case strings.HasPrefix(text, "zip+"):
		return parseZip(text)
	case hasScheme && (scheme == "https" || scheme == "http"):
		return parseGit(scheme, rest)
	case hasScheme || strings.Contains(text, "::"):
		return nil, errors.New("the protocol of the reference is not supported; use https")
	default:
		return parseRemote(text)
	}
}

func isLocal(text string) bool {
	return text == "." || text == ".." || strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../") ||
		strings.HasPrefix(text, "/")
}

// splitFile cuts the name of a YAML file from the end of a path.
func splitFile(p string) (dir, file string) {
	if !strings.HasSuffix(p, ".yml") && !strings.HasSuffix(p, ".yaml") {
		return p, ""
	}
	i := strings.LastIndexByte(p, '/')
	return p[:max(i, 0)], p[i+1:]
}

func parseZip(text string) (*pb.Reference, error) {
	location, fragment, _ := strings.Cut(strings.TrimPrefix(text, "zip+"), "#")
	options, err := url.ParseQuery(fragment)
	if err != nil {
		return nil, errors.New("the reference is invalid: write a list such as sha256=0a1b&dir=sub after #")
	}
	ref := &pb.Reference{Protocol: pb.Reference_zip, Url: location}
	for key, values := range options {
		switch key {
		case "sha256":
			ref.Digest = digestPrefix + values[0]
		case "dir":
			ref.Path = values[0]
		case "file":
			ref.File = values[0]
		default:
			return nil, errors.New("the reference is invalid: after # there can be sha256, dir and file")
		}
	}
	return ref, CheckReference(ref)
}

// parseRemote reads a reference without a scheme. A revision means git, a tag or a digest means a registry.
func parseRemote(text string) (*pb.Reference, error) {
	_, location, found := cutUserinfo(text)
	host, rest, slash := strings.Cut(location, "/")
	if !slash || host == "" || rest == "" {
		return nil, errors.New("the reference is invalid; a step of the project is written with ./ before it, one of a " +
			"repository as host/path@revision")
	}
	image, file, _ := strings.Cut(rest, " ")
	ref := &pb.Reference{Protocol: pb.Reference_oci, Registry: host}
	name, digest, pinned := strings.Cut(image, "@"+digestPrefix)
	if pinned {
		image, ref.Digest = name, digestPrefix+digest
	}
	colon := strings.LastIndexByte(image, ':')
	tagged := colon > strings.LastIndexByte(image, '/')
	if found || !pinned && (strings.Contains(rest, "@") || !tagged) {
		return parseGit("https", text)
	}
	ref.Repository = image
	if tagged {
		ref.Repository, ref.Tag = image[:colon], image[colon+1:]
	}
	ref.Path, ref.File = splitFile(strings.TrimSpace(file))
	return ref, CheckReference(ref)
}

// cutUserinfo cuts user:password@ from before the host.
func cutUserinfo(text string) (userinfo, location string, found bool) {
	slash := strings.IndexByte(text, '/')
	at := strings.LastIndexByte(text[:max(slash, 0)], '@')
	if at < 0 {
		return "", text, false
	}
	return text[:at], text[at+1:], true
}

// shortest is the smallest number of segments of a repository's path, if the reference does not mark its end.
const shortest = 2

func parseGit(scheme, text string) (*pb.Reference, error) {
	userinfo, location, found := cutUserinfo(text)
	location, rev, hasRev := strings.Cut(location, "@")
	if !hasRev {
		return nil, errors.New("the reference has no revision; write @ and a tag, a branch or a commit at its end")
	}
	repository, dir, explicit := strings.Cut(location, "/-/")
	if hasDots(repository) {
		return nil, errDots
	}
	if found {
		repository = userinfo + "@" + repository
	}
	ref := &pb.Reference{Protocol: pb.Reference_git, Url: scheme + "://" + repository, Rev: rev, Path: "steps"}
	switch {
	case explicit:
		dir, ref.File = splitFile(strings.TrimRight(dir, "/"))
		if hasDots(dir) {
			return nil, errDots
		}
		ref.Path = path.Join("steps", dir)
	case !strings.HasSuffix(repository, ".git"):
		ref.Open = strings.Count(repository, "/") > shortest
	}
	return ref, CheckReference(ref)
}

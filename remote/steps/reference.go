package steps

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// reference compiles what step, func or action says.
func (c *compiler) reference(d *draft, p *pb.Step, s *scope, i int) (*pb.Reference, error) {
	ref := d.ref
	switch {
	case ref.action:
		return c.action(ref)
	case ref.long:
		return c.longReference(ref, s, i)
	case ref.text.text == "":
		return nil, ref.at.errorf("the reference is empty; write where the step is, such as ./build")
	}
	p.Step = ref.text.text
	text, literal := Literal(ref.text.text)
	if !literal {
		return &pb.Reference{Protocol: pb.Reference_dynamic, Text: ref.text.text}, c.template(ref.text, s, i, "reference")
	}
	parsed, wrong := ParseReference(text)
	if wrong != nil {
		c.afterwards(func() error { return ref.at.beyond().errorf("%v", wrong) })
	}
	return parsed, nil
}

// action reads owner/repository[/path]@revision.
func (c *compiler) action(ref *draftReference) (*pb.Reference, error) {
	if ref.text.text == "" {
		return nil, ref.at.errorf("action is empty; write owner/repository@revision")
	}
	repository, rev, _ := strings.Cut(ref.text.text, "@")
	c.afterwards(func() error {
		if err := checkRevision(rev); err != nil || repository == "" || strings.HasPrefix(repository, "-") || hasExpression(ref.text.text) {
			return ref.at.beyond().errorf("the action is not valid; write owner/repository@revision")
		}
		return nil
	})
	return &pb.Reference{Protocol: pb.Reference_action, Repository: repository, Rev: rev}, nil
}

func (c *compiler) longReference(d *draftReference, s *scope, i int) (*pb.Reference, error) {
	ref := &pb.Reference{Protocol: pb.Reference_git}
	fields := d.git
	switch {
	case d.git != nil && d.oci != nil:
		return nil, d.at.errorf("the reference has both git and oci; it has one of them")
	case d.oci != nil:
		ref.Protocol, fields = pb.Reference_oci, d.oci
	case d.git == nil:
		return nil, d.at.errorf("the reference is empty; write git or oci, or a text such as ./build")
	}
	dynamic := false
	for _, f := range fields {
		if err := c.template(f.value, s, i, f.key.text); err != nil {
			return nil, err
		}
		_, literal := Literal(f.value.text)
		dynamic = dynamic || !literal
	}
	for _, f := range fields {
		text := f.value.text
		if !dynamic {
			text, _ = Literal(text)
		}
		setPart(ref, f.key.text, text)
	}
	if dynamic {
		ref.Form, ref.Protocol = ref.GetProtocol(), pb.Reference_dynamic
		return ref, nil
	}
	if err := checkReference(ref); err != nil {
		c.afterwards(func() error { return d.at.beyond().errorf("%v", err) })
	}
	return ref, nil
}

// setPart sets a part of a reference in its long form.
func setPart(ref *pb.Reference, key, text string) {
	switch key {
	case "url":
		ref.Url = text
	case "rev":
		ref.Rev = text
	case "dir":
		ref.Path = text
	case "file":
		ref.File = text
	case "registry":
		ref.Registry = text
	case "repository":
		ref.Repository = text
	case "tag":
		ref.Tag = text
	}
}

// Resolve returns the reference that ref, which is dynamic, stands for. eval gives the text of a
// template.
func Resolve(ref *pb.Reference, eval func(template string) (string, error)) (*pb.Reference, error) {
	if ref.GetText() != "" {
		text, err := eval(ref.GetText())
		if err != nil {
			return nil, err
		}
		return ParseReference(text)
	}
	out := &pb.Reference{Protocol: ref.GetForm()}
	for key, template := range map[string]string{
		"url": ref.GetUrl(), "rev": ref.GetRev(), "dir": ref.GetPath(), "file": ref.GetFile(),
		"registry": ref.GetRegistry(), "repository": ref.GetRepository(), "tag": ref.GetTag(),
	} {
		text, err := eval(template)
		if err != nil {
			return nil, err
		}
		setPart(out, key, text)
	}
	return out, checkReference(out)
}

// ParseReference reads the short form of a reference:
//
//	./dir  ../dir/step.yml  /dir                   a directory, or a file in it
//	host/group/project[/-/dir[/file.yml]]@rev      a directory below steps of a git repository
//	host/group/image:tag [dir/file.yml]            an image of an OCI registry
//	zip+https://host/steps.zip#sha256=..&dir=..    an archive
//	builtin://script                               a step of our own
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
	case hasScheme && strings.HasPrefix(scheme, "zip+"):
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
	return text == "." || text == ".." || strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../") || strings.HasPrefix(text, "/")
}

// splitFile cuts the name of a file from the end of a path, if there is one.
func splitFile(p string) (dir, file string) {
	if !strings.HasSuffix(p, ".yml") && !strings.HasSuffix(p, ".yaml") {
		return p, ""
	}
	i := strings.LastIndexByte(p, '/')
	return p[:max(i, 0)], p[i+1:]
}

func parseZip(text string) (*pb.Reference, error) {
	u, err := url.Parse(strings.TrimPrefix(text, "zip+"))
	if err != nil {
		return nil, errors.New("the reference is invalid: what follows zip+ is not a URL")
	}
	options, err := url.ParseQuery(u.Fragment)
	if err != nil {
		return nil, errors.New("the reference is invalid: after # there is a list such as sha256=0a1b&dir=sub, and this is none")
	}
	u.Fragment = ""
	ref := &pb.Reference{Protocol: pb.Reference_zip, Url: u.String()}
	for key, values := range options {
		switch key {
		case "sha256":
			ref.Digest = "sha256:" + values[0]
		case "dir":
			ref.Path = values[0]
		case "file":
			ref.File = values[0]
		default:
			return nil, errors.New("the reference is invalid: after # there can be sha256, dir and file")
		}
	}
	return ref, checkReference(ref)
}

// parseRemote reads what has no scheme: of git it has a revision, of a registry a tag.
func parseRemote(text string) (*pb.Reference, error) {
	_, location, found := cutUserinfo(text)
	host, rest, slash := strings.Cut(location, "/")
	if !slash || host == "" || rest == "" {
		return nil, errors.New("the reference is invalid; a step of the project is written with ./ before it, one of a repository as host/path@revision")
	}
	image, file, _ := strings.Cut(rest, " ")
	colon := strings.LastIndexByte(image, ':')
	if found || strings.Contains(rest, "@") || colon <= strings.LastIndexByte(image, '/') {
		return parseGit("https", text)
	}
	ref := &pb.Reference{Protocol: pb.Reference_oci, Registry: host, Repository: image[:colon], Tag: image[colon+1:]}
	ref.Path, ref.File = splitFile(strings.TrimSpace(file))
	return ref, checkReference(ref)
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

func parseGit(scheme, text string) (*pb.Reference, error) {
	userinfo, location, found := cutUserinfo(text)
	location, rev, hasRev := strings.Cut(location, "@")
	if !hasRev {
		return nil, errors.New("the reference has no revision; write @ and a tag, a branch or a commit at its end")
	}
	repository, dir, explicit := strings.Cut(location, "/-/")
	if found {
		repository = userinfo + "@" + repository
	}
	ref := &pb.Reference{Protocol: pb.Reference_git, Url: scheme + "://" + repository, Rev: rev, Path: "steps"}
	if explicit {
		dir, ref.File = splitFile(strings.TrimRight(dir, "/"))
		if hasDots(dir) {
			return nil, errDots
		}
		ref.Path = path.Join("steps", dir)
	}
	return ref, checkReference(ref)
}

var errDots = errors.New("the reference is invalid: with .. it leaves the repository")

func hasDots(dir string) bool {
	for part := range strings.SplitSeq(dir, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

func hasControl(text string) bool {
	return strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f })
}

// checkReference reports what is wrong with a reference to something that is fetched.
func checkReference(ref *pb.Reference) error {
	for _, part := range []string{ref.GetUrl(), ref.GetRev(), ref.GetPath(), ref.GetFile(), ref.GetRegistry(), ref.GetRepository(), ref.GetTag()} {
		if hasControl(part) || strings.HasPrefix(part, "-") && part != ref.GetRev() {
			return errors.New("the reference is invalid: a part of it begins with -, or holds a control character")
		}
	}
	if hasDots(ref.GetPath()) || strings.HasPrefix(ref.GetPath(), "/") || strings.ContainsAny(ref.GetFile(), `/\`) {
		return errDots
	}
	switch ref.GetProtocol() { //nolint:exhaustive // the others are not fetched
	case pb.Reference_git:
		return checkGit(ref)
	case pb.Reference_zip:
		if !isURL(ref.GetUrl(), "https", "http", "file") {
			return errors.New("the protocol of the archive is not supported; use zip+https or zip+file")
		}
		if d := ref.GetDigest(); d != "" && strings.Trim(strings.TrimPrefix(d, "sha256:"), "0123456789abcdef") != "" {
			return errors.New("the reference is invalid: the digest after sha256= is not in hexadecimal")
		}
	case pb.Reference_oci:
		if ref.GetRegistry() == "" || ref.GetRepository() == "" || ref.GetTag() == "" || strings.ContainsAny(ref.GetTag(), "/ @") {
			return errors.New("the reference is invalid; an image is written as registry/repository:tag")
		}
	}
	return nil
}

func checkGit(ref *pb.Reference) error {
	if strings.Contains(ref.GetUrl(), "::") {
		return errors.New("the protocol of the reference is not supported; use https")
	}
	if !strings.Contains(ref.GetUrl(), "://") {
		ref.Url = "https://" + ref.GetUrl()
	}
	if !isURL(ref.GetUrl(), "https", "http") {
		return errors.New("the repository of the reference is invalid; write https://host/path")
	}
	return checkRevision(ref.GetRev())
}

func isURL(text string, schemes ...string) bool {
	u, err := url.Parse(text)
	if err != nil {
		return false
	}
	for _, scheme := range schemes {
		if u.Scheme == scheme && (u.Host != "" || scheme == "file") && u.Path != "" {
			return true
		}
	}
	return false
}

// checkRevision refuses what is no name of a commit, or what git would take for something else.
func checkRevision(rev string) error {
	if rev == "" || strings.HasPrefix(rev, "-") || strings.Contains(rev, "..") || strings.Contains(rev, "@{") ||
		strings.ContainsAny(rev, " ~^:?*[\\") || hasControl(rev) {
		return errors.New("the revision of the reference is invalid; write a tag, a branch or a commit")
	}
	return nil
}

// Describe returns a reference for a reader, without credentials.
func Describe(ref *pb.Reference) string {
	switch ref.GetProtocol() {
	case pb.Reference_local:
		return path.Join(ref.GetPath(), ref.GetFile())
	case pb.Reference_git:
		return fmt.Sprintf("%s@%s", redact(ref.GetUrl()), ref.GetRev())
	case pb.Reference_zip:
		return redact(ref.GetUrl())
	case pb.Reference_oci:
		return fmt.Sprintf("%s/%s:%s", ref.GetRegistry(), ref.GetRepository(), ref.GetTag())
	case pb.Reference_builtin:
		return "builtin://" + ref.GetPath()
	case pb.Reference_action:
		return fmt.Sprintf("%s@%s", ref.GetRepository(), ref.GetRev())
	default:
		return "a reference"
	}
}

func redact(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "a URL"
	}
	u.User = nil
	return u.String()
}

package lang

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// digestPrefix stands before the hexadecimal digits of a digest.
const digestPrefix = "sha256:"

var errDots = errors.New("the reference is invalid: .. leads out of the repository")

func hasDots(dir string) bool { return slices.Contains(strings.Split(dir, "/"), "..") }

func hasControl(text string) bool {
	return strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f })
}

// CheckReference checks a reference to a step that must be fetched.
func CheckReference(ref *pb.Reference) error {
	for _, part := range []string{
		ref.GetUrl(), ref.GetRev(), ref.GetPath(), ref.GetFile(), ref.GetRegistry(), ref.GetRepository(), ref.GetTag(),
	} {
		if hasControl(part) || strings.HasPrefix(part, "-") && part != ref.GetRev() {
			return errors.New("the reference is invalid: a part of it begins with -, or holds a control character")
		}
	}
	if hasDots(ref.GetPath()) || strings.HasPrefix(ref.GetPath(), "/") || strings.ContainsAny(ref.GetFile(), `/\`) {
		return errDots
	}
	if d, ok := strings.CutPrefix(ref.GetDigest(), digestPrefix); ref.GetDigest() != "" &&
		(!ok || d == "" || strings.Trim(d, "0123456789abcdef") != "") {
		return errors.New("the reference is invalid: the digest is not in hexadecimal")
	}
	switch ref.GetProtocol() { //nolint:exhaustive // the other protocols are not fetched
	case pb.Reference_git:
		return checkGit(ref)
	case pb.Reference_zip:
		if !isLocal(ref.GetUrl()) && !isURL(ref.GetUrl(), "https", "http", "file") {
			return errors.New("the protocol of the archive is not supported; use zip+https or, for one of this machine, " +
				"zip+./steps.zip")
		}
	case pb.Reference_oci:
		if ref.GetRegistry() == "" || ref.GetRepository() == "" || ref.GetTag() == "" && ref.GetDigest() == "" ||
			strings.ContainsAny(ref.GetTag(), "/ @") {
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
	return CheckRevision(ref.GetRev())
}

func isURL(text string, schemes ...string) bool {
	u, err := url.Parse(text)
	return err == nil && slices.Contains(schemes, u.Scheme) && (u.Host != "" || u.Scheme == "file") && u.Path != ""
}

// CheckRevision refuses a revision that is not a name, or that git would read as an option or an operator.
func CheckRevision(rev string) error {
	if rev == "" || strings.HasPrefix(rev, "-") || strings.Contains(rev, "..") || strings.Contains(rev, "@{") ||
		strings.ContainsAny(rev, " ~^:?*[\\") || hasControl(rev) {
		return errors.New("the revision of the reference is invalid; write a tag, a branch or a commit")
	}
	return nil
}

// Describe returns a reference for people, without credentials.
func Describe(ref *pb.Reference) string {
	switch ref.GetProtocol() {
	case pb.Reference_local:
		return path.Join(ref.GetPath(), ref.GetFile())
	case pb.Reference_git:
		return fmt.Sprintf("%s@%s", WithoutUserinfo(ref.GetUrl()), ref.GetRev())
	case pb.Reference_zip:
		return WithoutUserinfo(ref.GetUrl())
	case pb.Reference_oci:
		name := ref.GetRegistry() + "/" + ref.GetRepository()
		if ref.GetTag() != "" {
			name += ":" + ref.GetTag()
		}
		if ref.GetDigest() != "" {
			name += "@" + ref.GetDigest()
		}
		return name
	case pb.Reference_builtin:
		return "builtin://" + ref.GetPath()
	case pb.Reference_action:
		if u, dir, isURL := strings.Cut(ActionText(ref), "://"); isURL && u != "docker" {
			return WithoutUserinfo(u + "://" + dir)
		}
		return ActionText(ref)
	default:
		return "a reference"
	}
}

// WithoutUserinfo returns a URL without credentials and without its query, because that may contain credentials too.
func WithoutUserinfo(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "a URL"
	}
	u.User, u.RawQuery = nil, ""
	return u.String()
}

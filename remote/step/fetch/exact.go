package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"google.golang.org/protobuf/proto"

	"github.com/stepmux/stepmux/internal/termtext"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// ErrOffline says that a server would have to be asked for a component, and the store is offline.
var ErrOffline = errors.New("not in the cache; a private copy may exist, but offline its server cannot be asked " +
	"whether you may use it")

// offline is a transport that refuses every request.
type offline struct{}

// RoundTrip implements [http.RoundTripper].
func (offline) RoundTrip(*http.Request) (*http.Response, error) { return nil, ErrOffline }

// ChangedError says that the files differ from those of an earlier fetch.
type ChangedError struct {
	// Kind is the kind of the digest: the name of a field of Source.
	Kind string
	// Was and Is are the digests before and now. Is is empty if the files are gone.
	Was, Is string
}

func (e *ChangedError) Error() string {
	return fmt.Sprintf("the digest is not the recorded one: %s was %s and is %s; it was changed", e.Kind,
		termtext.Short(e.Was, 80), cmp.Or(e.Is, "none"))
}

// FetchExactly fetches a component again. ref is a reference like that of the earlier fetch, and want the Source that
// it returned. FetchExactly gets that very commit, archive or image, from the cache if possible, even if ref leads to
// another one now. The component's Source is want. The error is a *ChangedError if a single byte differs.
func (s *Store) FetchExactly(
	ctx context.Context, ref *pb.Reference, want Source, with Credentials,
) (*Component, error) {
	if !IsOf(want, ref) {
		return nil, fmt.Errorf("the trace recorded it from %s, not from this reference", termtext.Short(want.Location, 200))
	}
	pinned, err := pin(want, ref)
	if err != nil {
		return nil, err
	}
	c, err := s.Fetch(ctx, pinned, with)
	if err != nil {
		return nil, err
	}
	if c.Tree != want.Tree {
		c.Release()
		return nil, &ChangedError{"tree", want.Tree, c.Tree}
	}
	c.Location, c.Version, c.ResolvedRef = want.Location, want.Version, want.ResolvedRef
	if same, ok := c.For(ref); ok { // it may name a step below the repository
		c.Dir, c.File = same.Dir, same.File
	}
	return c, nil
}

// IsOf reports whether s can be the result of fetching ref, which has the protocol git, zip or oci and no expressions.
func IsOf(s Source, ref *pb.Reference) bool {
	switch ref.GetProtocol() { //nolint:exhaustive // the others are not fetched
	case pb.Reference_git:
		_, ok := (&Component{Source: s}).For(ref)
		return ok
	case pb.Reference_zip:
		a, err := archiveAt(ref.GetUrl())
		return err == nil && s.Kind == kindZip && a.location == s.Location &&
			(ref.GetDigest() == "" || ref.GetDigest() == s.Digest)
	case pb.Reference_oci:
		where, err := name.NewRepository(ref.GetRegistry()+"/"+ref.GetRepository(), name.StrictValidation)
		return err == nil && s.Kind == kindOCI && where.String() == s.Location &&
			(ref.GetDigest() == "" || ref.GetDigest() == s.Digest) &&
			cmp.Or(ref.GetDigest(), ref.GetTag()) == s.Version
	default:
		return false
	}
}

// pin returns a copy of ref that can only lead to s.
func pin(s Source, ref *pb.Reference) (*pb.Reference, error) {
	ref = proto.CloneOf(ref)
	digest := s.Digest
	switch s.Kind {
	case kindGit:
		commit, full := fullCommit(s.Commit)
		if !full {
			return nil, fmt.Errorf("the source is not known exactly: %q is not the full name of a commit",
				termtext.Short(s.Commit, 80))
		}
		at, err := url.Parse(s.Location)
		if err != nil {
			return nil, errors.New("the address of the repository is invalid")
		}
		if asked, err := url.Parse(ref.GetUrl()); err == nil {
			at.User = asked.User
		}
		ref.Url, ref.Rev, ref.Open = at.String(), commit, false
		digest = s.Tree
	case kindOCI:
		ref.Tag, ref.Digest = "", s.Digest
	default:
		ref.Digest = s.Digest
	}
	for _, d := range []string{digest, s.Tree} {
		if digits, err := parseDigest(d); err != nil || digits == "" {
			return nil, errors.New("the source is not known exactly: a digest is missing, or is not one of sha256")
		}
	}
	return ref, nil
}

// Reference returns a reference to the place that s was fetched from, without credentials, without a query, and without
// the path of the step in it.
func Reference(s Source) (*pb.Reference, error) {
	ref := &pb.Reference{}
	switch s.Kind {
	case kindGit:
		ref.Protocol, ref.Url, ref.Rev = pb.Reference_git, s.Location, s.Version
	case kindZip:
		ref.Protocol, ref.Url, ref.Digest = pb.Reference_zip, s.Location, s.Digest
	case kindOCI:
		ref.Protocol, ref.Digest = pb.Reference_oci, s.Digest
		if s.Version != s.Digest {
			ref.Tag, ref.Digest = s.Version, ""
		}
		ref.Registry, ref.Repository, _ = strings.Cut(s.Location, "/")
	default:
		return nil, fmt.Errorf("a component of the kind %q is not fetched", termtext.Short(s.Kind, 40))
	}
	return ref, lang.CheckReference(ref)
}

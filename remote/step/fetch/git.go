package fetch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/component"
)

// repository is a git repository that the caller may read.
type repository struct {
	// location is the URL of the request, without credentials.
	location string
	// url is the address that git uses.
	url string
	// login is for the server. It is nil if the server needs no login.
	login *Login
	// local says that it is a directory of this machine.
	local bool
}

// git returns the repository that ref names. For an open ref, whose address is not divided, name is the part after the
// repository.
func (f *fetcher) git(ctx context.Context, ref *pb.Reference) (c *Component, name string, err error) {
	u, err := url.Parse(ref.GetUrl())
	if err != nil || !isHTTP(u) {
		return nil, "", errors.New("the repository's address is invalid; write https://host/path")
	}
	if hasOddPath(u) {
		return nil, "", errors.New("the repository's address is invalid: its path has .. or bytes that are not text")
	}
	login := f.with.For(u)
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	commit, pinned := fullCommit(ref.GetRev())
	if pinned {
		if c, name, err := f.pinned(ctx, u, ref.GetOpen(), commit); c != nil || err != nil {
			return c, name, err
		}
	}
	repo, name, err := f.repository(ctx, u, ref.GetOpen(), login)
	if err != nil {
		return nil, "", err
	}
	resolved := ""
	if !pinned {
		if commit, resolved, err = f.resolve(ctx, repo, ref.GetRev()); err != nil {
			return nil, "", err
		}
	}
	c, err = f.obtain(ctx, keyOf(kindGit, repo.location, commit), repo.login != nil,
		func(w *treeWriter, tmp *scratch) (Source, error) {
			return f.download(ctx, repo, commit, resolved, w, tmp)
		})
	if err != nil {
		return nil, "", err
	}
	c.ResolvedRef = resolved
	return c, name, nil
}

// hasOddPath reports whether the percent-decoded path of u cannot name a step in a repository.
func hasOddPath(u *url.URL) bool {
	return slices.Contains(strings.Split(u.Path, "/"), "..") || !utf8.ValidString(u.Path) ||
		strings.ContainsFunc(u.Path, unicode.IsControl)
}

// pinned returns the step if its commit is in the cache and public, so that no server has to be asked. Otherwise it
// returns nil.
func (f *fetcher) pinned(ctx context.Context, u *url.URL, open bool, commit string) (*Component, string, error) {
	location, name := u.String(), ""
	if open {
		repo, known := f.boundary(location)
		if !known {
			return nil, "", nil
		}
		location, name = repo, strings.Trim(strings.TrimPrefix(location, repo), "/")
	}
	key := keyOf(kindGit, location, commit)
	if e, found := f.find(key); !found || e.Private {
		return nil, "", nil
	}
	c, err := f.cached(ctx, key)
	return c, name, err
}

// boundary returns the repository at the beginning of location, which ends with the name of a step, if an earlier fetch
// has found it.
func (f *fetcher) boundary(location string) (string, bool) {
	var a answer
	found := f.cache.read(answerDir, keyOf("boundary", location), &a)
	return a.Is, found && strings.HasPrefix(location+"/", a.Is+"/")
}

// repository finds the repository at u or, if open, at the beginning of u, where the name of a step follows.
func (f *fetcher) repository(ctx context.Context, u *url.URL, open bool, login *Login) (*repository, string, error) {
	location := u.String()
	if !open {
		repo, err := f.probe(ctx, u, login)
		return repo, "", err
	}
	var first error
	for _, candidate := range f.candidates(u) {
		repo, err := f.probe(ctx, candidate, login)
		if err == nil {
			name := strings.Trim(strings.TrimPrefix(u.Path, candidate.Path), "/")
			if known, found := f.boundary(location); !found || known != repo.location {
				err = f.cache.write(answerDir, keyOf("boundary", location), answer{Is: repo.location})
			}
			return repo, name, err
		}
		if _, refused := errors.AsType[*AccessError](err); !refused {
			return nil, "", err
		}
		if first == nil {
			first = err
		}
	}
	return nil, "", fmt.Errorf("neither the address nor a beginning of it is a repository: %w", first)
}

// minSegments is the smallest number of segments in the path of a repository.
const minSegments = 2

// candidates returns the repositories that may be at the beginning of u: first the one that an earlier fetch has found,
// then u itself, then the others, the shortest first.
func (f *fetcher) candidates(u *url.URL) []*url.URL {
	segments := strings.Split(strings.Trim(u.Path, "/"), "/")
	var all []*url.URL
	if known, found := f.boundary(u.String()); found {
		if k, err := url.Parse(known); err == nil {
			all = append(all, k)
		}
	}
	all = append(all, u)
	for n := minSegments; n < len(segments); n++ {
		all = append(all, &url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/" + strings.Join(segments[:n], "/")})
	}
	return all
}

// probe asks whether there is a repository at u. It may present login there.
func (f *fetcher) probe(ctx context.Context, u *url.URL, login *Login) (*repository, error) {
	repo := &repository{location: u.String()}
	target := f.mirrored(repo.location)
	if filepath.IsAbs(target) {
		repo.url, repo.local = (&url.URL{Scheme: "file", Path: target}).String(), true
		if info, err := os.Stat(target); err != nil || !info.IsDir() {
			return nil, &AccessError{Status: http.StatusNotFound}
		}
		return repo, nil
	}
	if target != repo.location {
		t, err := url.Parse(target)
		if err != nil || !isHTTP(t) {
			return nil, errors.New("the address of the mirror is invalid; use a URL or an absolute path")
		}
		u, login = t, f.with.For(t)
	}
	at, private, err := anonymousFirst(login, func(login *Login) (*url.URL, error) { return f.advertised(ctx, u, login) })
	if err != nil {
		return nil, err
	}
	repo.url = at.String()
	if private {
		if component.Origin(at) != login.Server {
			return nil, errors.New("the server redirects to another server, which must not get the credentials")
		}
		repo.login = login
	}
	return repo, nil
}

// mirrored returns the mirror of a URL, or the URL itself.
func (f *fetcher) mirrored(location string) string {
	best := ""
	for from := range f.cfg.Mirrors {
		if len(from) > len(best) && strings.HasPrefix(location, from) {
			best = from
		}
	}
	if best == "" {
		return location
	}
	return f.cfg.Mirrors[best] + strings.TrimPrefix(location, best)
}

// advertised asks the server at u for the beginning of git's protocol, and returns the address after redirects. git
// itself does not follow them.
func (f *fetcher) advertised(ctx context.Context, u *url.URL, login *Login) (*url.URL, error) {
	const service = "git-upload-pack"
	info := u.JoinPath("info/refs")
	info.RawQuery = "service=" + service
	resp, err := f.get(ctx, info, login, http.Header{"Git-Protocol": {"version=2"}}, http.StatusOK)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	drain(resp.Body)
	if kind := resp.Header.Get("Content-Type"); kind != "application/x-"+service+"-advertisement" {
		return nil, &AccessError{Status: http.StatusNotFound, Presented: login != nil} // a web page
	}
	at := *resp.Request.URL
	path, found := strings.CutSuffix(at.Path, "/info/refs")
	if !found {
		return nil, errors.New("the server redirects to an address that is not a repository")
	}
	at.Path, at.RawPath, at.RawQuery, at.User = path, "", "", nil
	return &at, nil
}

// fullCommit returns rev in lower case, and whether it is the full name of a commit.
func fullCommit(rev string) (string, bool) {
	rev = strings.ToLower(rev)
	return rev, (len(rev) == 40 || len(rev) == 64) && isHex(rev)
}

func isHex(text string) bool { return strings.Trim(text, "0123456789abcdef") == "" }

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
	"time"
	"unicode"
	"unicode/utf8"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// repository is a git repository that whoever asks may read.
type repository struct {
	// location is the URL it was asked for by, without credentials.
	location string
	// url is where git finds it.
	url string
	// login is what the server wants; nil if nothing.
	login *Login
	local bool
	// stall is how long the server may send nothing.
	stall time.Duration
}

// program returns git for a new repository in aside, which talks to r.
func (r *repository) program(aside *scratch, format string) (*gitProgram, error) {
	g := &gitProgram{aside: aside, dir: filepath.Join(aside.path, "git"), local: r.local, stall: r.stall}
	if r.login != nil {
		g.header = r.login.header()
	}
	return g, g.init(format)
}

// git returns the step that ref says, of a repository.
func (f *fetcher) git(ctx context.Context, ref *pb.Reference) (*Component, error) {
	u, err := url.Parse(ref.GetUrl())
	if err != nil || !isHTTP(u) {
		return nil, errors.New("the repository's address is invalid; write https://host/path")
	}
	if hasOddPath(u) {
		return nil, errors.New("the repository's address is invalid: its path has .. in it, or what is no text")
	}
	login := f.with.forURL(u)
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	commit, pinned := fullCommit(ref.GetRev())
	if pinned {
		if c, err := f.pinned(ctx, ref, u, commit); c != nil || err != nil {
			return c, err
		}
	}
	repo, name, err := f.repository(ctx, u, ref.GetOpen(), login)
	if err != nil {
		return nil, err
	}
	resolved := ""
	if !pinned {
		if commit, resolved, err = f.resolve(ctx, repo, ref.GetRev()); err != nil {
			return nil, err
		}
	}
	c, err := f.obtain(ctx, keyOf(kindGit, repo.location, commit), repo.login != nil,
		func(w *treeWriter, aside *scratch) (Source, error) {
			return f.download(ctx, repo, commit, resolved, w, aside)
		})
	if err != nil {
		return nil, err
	}
	c.Version, c.ResolvedRef = ref.GetRev(), resolved
	c.place(ref.GetPath(), ref.GetFile(), name)
	return c, nil
}

// hasOddPath reports whether what the path of u stands for, percent-decoded, is none of names: the step is found in the
// repository by it.
func hasOddPath(u *url.URL) bool {
	return slices.Contains(strings.Split(u.Path, "/"), "..") || !utf8.ValidString(u.Path) ||
		strings.ContainsFunc(u.Path, unicode.IsControl)
}

// pinned returns the step if it is of a commit that is in the cache, and that anybody may have: nobody needs to be
// asked.
func (f *fetcher) pinned(ctx context.Context, ref *pb.Reference, u *url.URL, commit string) (*Component, error) {
	location, name := u.String(), ""
	if ref.GetOpen() {
		a, known := f.boundary(location)
		if !known {
			return nil, nil
		}
		location, name = a, strings.Trim(strings.TrimPrefix(location, a), "/")
	}
	key := keyOf(kindGit, location, commit)
	if e, found := f.find(key); !found || e.Private {
		return nil, nil
	}
	c, err := f.cached(ctx, key)
	if c == nil || err != nil {
		return nil, err
	}
	c.Version = ref.GetRev()
	c.place(ref.GetPath(), ref.GetFile(), name)
	return c, nil
}

// boundary returns the repository that location, which goes on with the name of a step, was found to begin with.
func (f *fetcher) boundary(location string) (string, bool) {
	var a answer
	found := f.cache.read(answerDir, keyOf("boundary", location), &a)
	return a.Is, found && strings.HasPrefix(location+"/", a.Is+"/")
}

// repository finds the repository that u is or, if open, begins with, and the name of the step after it.
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
	return nil, "", fmt.Errorf("neither it nor what it begins with is a repository: %w", first)
}

// minSegments is how many segments the path of a repository has at least.
const minSegments = 2

// candidates returns the repositories that u can begin with: what was found before, u itself, and then the shortest
// first.
func (f *fetcher) candidates(u *url.URL) []*url.URL {
	segments := strings.Split(strings.Trim(u.Path, "/"), "/")
	at := func(n int) *url.URL {
		c := *u
		c.Path, c.RawPath = "/"+strings.Join(segments[:n], "/"), ""
		return &c
	}
	var all []*url.URL
	if known, found := f.boundary(u.String()); found {
		if k, err := url.Parse(known); err == nil {
			all = append(all, k)
		}
	}
	all = append(all, u)
	for n := minSegments; n < len(segments); n++ {
		all = append(all, at(n))
	}
	return all
}

// probe asks whether there is a repository at u, which login may be presented to.
func (f *fetcher) probe(ctx context.Context, u *url.URL, login *Login) (*repository, error) {
	repo := &repository{location: u.String(), stall: f.limits.stall}
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
		u, login = t, f.with.forURL(t)
	}
	at, private, err := asking(login, func(login *Login) (*url.URL, error) { return f.advertised(ctx, u, login) })
	if err != nil {
		return nil, err
	}
	repo.url = at.String()
	if private {
		if origin(at) != login.Server {
			return nil, errors.New("the server redirects to another one, which is not given the credentials")
		}
		repo.login = login
	}
	return repo, nil
}

// mirrored returns what takes the place of a URL.
func (f *fetcher) mirrored(location string) string {
	best := ""
	for from := range f.mirrors {
		if len(from) > len(best) && strings.HasPrefix(location, from) {
			best = from
		}
	}
	if best == "" {
		return location
	}
	return f.mirrors[best] + strings.TrimPrefix(location, best)
}

// advertised asks the server at u for the beginning of git's protocol, and returns where it is after redirects: git
// follows none.
func (f *fetcher) advertised(ctx context.Context, u *url.URL, login *Login) (*url.URL, error) {
	const service = "git-upload-pack"
	info := u.JoinPath("info/refs")
	info.RawQuery = "service=" + service
	resp, err := f.get(ctx, info, login, http.Header{"Git-Protocol": {"version=2"}}, http.StatusOK)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	finish(resp.Body)
	if kind := resp.Header.Get("Content-Type"); kind != "application/x-"+service+"-advertisement" {
		return nil, &AccessError{Status: http.StatusNotFound, Presented: login != nil} // a page for people
	}
	at := *resp.Request.URL
	path, found := strings.CutSuffix(at.Path, "/info/refs")
	if !found {
		return nil, errors.New("the server redirects to what is no repository")
	}
	at.Path, at.RawPath, at.RawQuery, at.User = path, "", "", nil
	return &at, nil
}

// fullCommit returns the name of a commit that rev is in full.
func fullCommit(rev string) (string, bool) {
	rev = strings.ToLower(rev)
	return rev, (len(rev) == 40 || len(rev) == 64) && isHex(rev)
}

func isHex(text string) bool { return strings.Trim(text, "0123456789abcdef") == "" }

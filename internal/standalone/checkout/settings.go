package checkout

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Depth bounds the history of a [Copy]: to commits that so many steps lead to, the first one being that of a branch or
// tag itself.
type Depth int

// With None there is no copy at all. All is the whole history, with all tags and all branches of the remote origin.
const (
	None Depth = -1
	All  Depth = 0
)

// maxDepth bounds a Depth.
const maxDepth = 1 << 30

// ParseDepth reads a number, in which 0 is All, or the name of All or None in lower case.
func ParseDepth(text string) (Depth, error) {
	switch text {
	case "all":
		return All, nil
	case "none":
		return None, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%.40q is not the depth of a history: use a number, all or none", text)
	}
	return Depth(min(n, maxDepth)), nil
}

// settings are the settings of a repository that its copy has.
type settings struct {
	content []string // lines about the content of files
	origin  string   // the URL of the remote origin, without a login; may be empty
	sha256  bool     // the objects have names of SHA-256
	partial bool     // objects may be missing that the remote origin has
	filter  string   // of the objects that are missing
}

// letters and marks are the characters of the settings that are copied: words, and the filter of a partial clone.
const letters, marks = "abcdefghijklmnopqrstuvwxyz", "0123456789:=+%.,/-"

// configure reads the settings.
func (r *copier) configure() error {
	list, err := r.ask("config", "-z", "--get-regexp",
		`^(core\.(autocrlf|eol|filemode|symlinks)|extensions\.(objectformat|partialclone)|remote\.origin\.)`)
	if err != nil && len(list) == 0 {
		list = nil // nothing is set
	}
	var has bool
	of := map[string]string{}
	for entry := range strings.SplitSeq(string(list), "\x00") {
		name, value, hasValue := strings.Cut(entry, "\n")
		if !hasValue {
			value = "true"
		}
		of[strings.ToLower(name)] = value
		has = has || strings.ToLower(name) == "remote.origin.url"
	}
	for _, name := range []string{"autocrlf", "eol", "filemode", "symlinks"} {
		if value := of["core."+name]; value != "" && strings.Trim(value, letters) == "" {
			r.content = append(r.content, name+" = "+value)
		}
	}
	switch format := of["extensions.objectformat"]; format {
	case "", "sha1":
	case "sha256":
		r.sha256 = true
	default:
		return errors.New("its objects have names of an unknown format")
	}
	r.partial = of["extensions.partialclone"] != "" || of["remote.origin.promisor"] == "true"
	if filter := of["remote.origin.partialclonefilter"]; strings.Trim(filter, letters+marks) == "" {
		r.filter = filter
	}
	if has { // as git uses it, after url.*.insteadOf
		if url, err := r.ask("remote", "get-url", "origin"); err == nil {
			r.origin = withoutLogin(strings.TrimSuffix(string(url), "\n"))
		}
	}
	return nil
}

// withoutLogin returns a URL of a repository without the user and the password in it. The name of a user of SSH stays,
// because the address is another one without it. A URL that cannot be carried becomes empty.
func withoutLogin(url string) string {
	helper, _, named := strings.Cut(url, "::") // which may be a command
	isHelper := named && !strings.ContainsAny(helper, "/[")
	if isHelper || len(url) > maxMessage || strings.ContainsFunc(url, unicode.IsControl) {
		return ""
	}
	scheme, rest, found := strings.Cut(url, "://")
	if !found { // a path, or user@host:path
		return url
	}
	host, below, _ := strings.Cut(rest, "/")
	web := strings.HasPrefix(strings.ToLower(scheme), "http") || strings.HasPrefix(strings.ToLower(scheme), "ftp")
	if i := strings.LastIndexByte(host, '@'); i >= 0 {
		user, _, _ := strings.Cut(host[:i], ":")
		if host = host[i+1:]; !web {
			host = user + "@" + host
		}
	}
	if web { // a query may have a token
		host, _, _ = strings.Cut(host, "?")
		below, _, _ = strings.Cut(below, "?")
		below, _, _ = strings.Cut(below, "#")
	}
	return scheme + "://" + host + "/" + below
}

// quoted returns a value, or the name of a branch, for a configuration.
func quoted(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

// text returns the configuration of the copy.
func (r *copier) text() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("[core]")
	if r.sha256 || r.partial {
		line("\trepositoryformatversion = 1")
	} else {
		line("\trepositoryformatversion = 0")
	}
	line("\tbare = false")
	line("\tlogallrefupdates = true")
	// The index has the times and sizes of the files of the work tree, which their copies have too, and its inodes.
	line("\tcheckStat = minimal")
	for _, setting := range r.content {
		line("\t%s", setting)
	}
	if r.sha256 || r.partial {
		line("[extensions]")
	}
	if r.sha256 {
		line("\tobjectFormat = sha256")
	}
	if r.partial {
		line("\tpartialClone = origin")
	}
	if r.origin != "" || r.partial {
		line(`[remote "origin"]`)
	}
	if r.origin != "" {
		line("\turl = %s", quoted(r.origin))
		line("\tfetch = +%s*:%s*", ofBranch, ofOrigin)
	}
	if r.partial {
		line("\tpromisor = true")
	}
	if r.partial && r.filter != "" {
		line("\tpartialclonefilter = %s", quoted(r.filter))
	}
	if name, found := strings.CutPrefix(r.upstream, ofOrigin); found && r.refs[r.upstream] != "" {
		line("[branch %s]", quoted(strings.TrimPrefix(r.branch, ofBranch)))
		line("\tremote = origin")
		line("\tmerge = %s", ofBranch+name)
	}
	return b.String()
}

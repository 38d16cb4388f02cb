package engine

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	"github.com/stepmux/stepmux/remote/proc"
	"github.com/stepmux/stepmux/remote/step/expr"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// ownProgram is the running program, even if a build has replaced its file. It is the path in a command's init, which
// is this program too.
const ownProgram = "/proc/self/exe"

// tokenVariable is the environment variable by which a command of this program gets its token. The token is in no
// argument.
const tokenVariable = "CI_JOB_TOKEN"

// helperCall is a call of a built-in step that runs a command of this program.
type helperCall struct {
	r    *Runner
	g    *frame
	vars map[string]expr.Value // job variables
	argv []expr.Value
	err  error // the first error
}

// helper makes cmd run the command of this program that implements the built-in step g.
func (r *Runner) helper(g *frame, cmd *proc.Command) ([]expr.Value, error) {
	c := &helperCall{r: r, g: g, vars: r.knownVars(g)}
	c.add(append([]string{r.cfg.Program}, g.def.GetExec().GetCommand()...)...)
	token := ""
	switch g.builtin {
	case lang.CloneStep:
		token = c.clone()
	case lang.UploadArtifactsStep:
		token = c.upload()
	case lang.DownloadArtifactsStep:
		token = c.download()
	case lang.RestoreCacheStep, lang.SaveCacheStep:
		c.cache(cmd)
	default:
		c.fail("the step %s is built in, and this program has no command for it", g.builtin)
	}
	if g.builtin != lang.CloneStep { // which has this exit code in any case
		c.option("--fault-code", strconv.Itoa(exitFault))
	}
	if token != "" && c.err == nil {
		cmd.Env = append(cmd.Env, tokenVariable+"="+token) // the last entry of a name counts
		c.err = r.hide(token)
	}
	for _, arg := range c.argv {
		cmd.Argv = append(cmd.Argv, arg.Text())
	}
	return c.argv, c.err
}

func (c *helperCall) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// add adds arguments.
func (c *helperCall) add(args ...string) {
	for _, arg := range args {
		v, err := expr.New(arg)
		if err != nil {
			c.fail("an argument: %v", err)
		}
		c.argv = append(c.argv, v)
	}
}

// option adds a flag with a value, unless that is empty.
func (c *helperCall) option(flag, value string) {
	if value != "" {
		c.add(flag + "=" + value)
	}
}

// text returns an input that is a text.
func (c *helperCall) text(input string) string { return c.g.inputs[input].Text() }

// variable returns a job variable, or "".
func (c *helperCall) variable(name string) string {
	if v, ok := c.vars[name]; ok {
		return v.Text()
	}
	return ""
}

// texts adds the inputs as flags.
func (c *helperCall) texts(flags map[string]string) {
	for _, input := range sortedkeys.Of(flags) {
		c.option(flags[input], c.text(input))
	}
}

// list adds a flag for each item of an input.
func (c *helperCall) list(flag, input string) {
	v := c.g.inputs[input]
	for i := range v.Len() {
		item := v.Index(i)
		if item.Kind() != expr.String || item.Text() == "" {
			c.fail("input %q: every item must be a text that is not empty", input)
			return
		}
		arg, err := expr.New(flag + "=" + item.Text())
		if err != nil {
			c.fail("input %q: %v", input, err)
		}
		c.argv = append(c.argv, arg.MarkLike(item))
	}
}

// clone adds the arguments of git/clone, and returns the password for the repository.
func (c *helperCall) clone() (password string) {
	address := cmp.Or(c.text("url"), c.variable("CI_REPOSITORY_URL"))
	if address == "" {
		c.fail("which repository? The input url is empty, and there is no job variable CI_REPOSITORY_URL")
		return ""
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		c.fail("the repository is not a URL such as https://host/path")
		return ""
	}
	user, password := c.text("user"), c.text("token")
	if password == "" {
		if login := c.r.credentials.For(u); login != nil {
			user, password = cmp.Or(user, login.User), login.Password
		}
	}
	u.User = nil
	revision := cmp.Or(c.text("revision"), c.variable("CI_COMMIT_SHA"), "HEAD")
	if err := lang.CheckRevision(revision); err != nil {
		c.fail("input \"revision\": %w", err)
	}
	depth, dir := c.g.inputs["depth"].Any(), c.text("dir")
	if n, ok := depth.(float64); !ok || n < 0 || n != math.Trunc(n) || n > math.MaxInt32 {
		c.fail("input \"depth\": use a whole number that is not negative")
	}
	if !filepath.IsLocal(dir) {
		c.fail("input \"dir\": it must be below the job's directory")
	}
	c.option("--url", u.String())
	c.option("--revision", revision)
	c.list("--refspec", "refspecs")
	c.option("--depth", c.text("depth"))
	c.option("--dir", dir)
	c.option("--clean", strconv.FormatBool(c.g.inputs["clean"].Truthy()))
	c.option("--submodules", c.text("submodules"))
	c.option("--user", cmp.Or(user, "gitlab-ci-token"))
	c.g.files.wanted = true
	c.option("--output-file", c.g.files.path("output"))
	return password
}

// server adds the address of the server, and returns the token for it. The job's token is used only for the job's own
// server.
func (c *helperCall) server() (token string) {
	address := cmp.Or(c.text("url"), c.variable("CI_SERVER_URL"))
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil {
		c.fail("which server? Give its URL, such as https://gitlab.example.com, as the input url or the job variable " +
			"CI_SERVER_URL")
		return ""
	}
	c.option("--url", address)
	if token = c.text("token"); token == "" && c.r.credentials.For(u) != nil {
		token = c.variable(tokenVariable)
	}
	if token == "" {
		c.fail("the token is missing: give the input token; the job variable CI_JOB_TOKEN is for the server of " +
			"CI_SERVER_URL alone")
	}
	return token
}

// upload adds the arguments of artifacts/upload, and returns the token of the job.
func (c *helperCall) upload() (token string) {
	token = c.server()
	id := cmp.Or(c.text("id"), c.variable("CI_JOB_ID"))
	if id == "" {
		c.fail("which job? The input id is empty, and there is no job variable CI_JOB_ID")
	}
	c.option("--id", id)
	c.files()
	c.texts(map[string]string{
		"name": "--name", "expire_in": "--expire-in", "format": "--artifact-format", "type": "--artifact-type",
		"compression_level": "--compression-level",
	})
	return token
}

// files adds the files for an archive.
func (c *helperCall) files() {
	if c.g.inputs["paths"].Len() == 0 && !c.g.inputs["untracked"].Truthy() {
		c.fail("there are no files: give the input paths a list of patterns, or set untracked")
	}
	c.list("--path", "paths")
	c.list("--exclude", "exclude")
	if c.g.inputs["untracked"].Truthy() {
		c.add("--untracked")
	}
}

// download adds the arguments of artifacts/download, and returns the token of that job.
func (c *helperCall) download() (token string) {
	token = c.server()
	c.option("--id", c.text("id"))
	if c.g.inputs["direct"].Truthy() {
		c.add("--direct-download")
	}
	return token
}

// cache adds the arguments of cache/restore and cache/save.
func (c *helperCall) cache(cmd *proc.Command) {
	dir, key := c.text("dir"), c.text("key")
	if key == "" {
		c.fail("input \"key\": the name of the cache is empty")
	}
	caches := ""
	if dir == "" {
		dir = c.cacheDir()
		caches = filepath.Dir(dir)
	}
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(cmd.Dir, dir)
	}
	c.option("--file", CacheFile(dir, key))
	if c.g.builtin == lang.SaveCacheStep {
		c.option("--caches", caches)
		c.files()
		c.texts(map[string]string{
			"compression_format": "--compression-format", "compression_level": "--compression-level",
		})
	}
}

// cacheDir returns the directory of the project's caches, in the user's cache directory. The project is that of the
// server or, without a server, the job's directory.
func (c *helperCall) cacheDir() string {
	env := c.r.environment(c.g)
	base := env["XDG_CACHE_HOME"].Text()
	if !filepath.IsAbs(base) {
		if base = env["HOME"].Text(); !filepath.IsAbs(base) {
			c.fail("where are the caches? There is no HOME; give the directory as the input dir")
			return ""
		}
		base = filepath.Join(base, ".cache")
	}
	project := c.variable("CI_PROJECT_ID")
	if project == "" {
		project = LocalProject(c.r.place.WorkDir)
	} else if server := c.variable("CI_SERVER_URL"); server != "" { // another server has another project of that number
		project = server + "/" + project
	}
	return CachesOf(base, project)
}

// LocalProject returns the name of a project that no server knows, by its directory, however a link leads there.
func LocalProject(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	sum := sha256.Sum256([]byte(dir))
	return "local-" + hex.EncodeToString(sum[:8])
}

// CachesOf returns the directory of a project's caches below base, the user's cache directory.
func CachesOf(base, project string) string {
	return filepath.Join(base, "stepmux-caches", fileName(project))
}

// CacheFile returns the archive of a cache in dir, the directory of its project's caches.
func CacheFile(dir, key string) string { return filepath.Join(dir, fileName(key), "cache.zip") }

// longestName bounds the names that fileName keeps unchanged, in bytes.
const longestName = 200

// fileName returns a file name for any text that is not empty. Different texts have different names.
func fileName(text string) string {
	name := url.PathEscape(text)
	switch {
	case strings.Trim(name, ".") == "":
		return strings.ReplaceAll(name, ".", "%2E")
	case len(name) > longestName:
		sum := sha256.Sum256([]byte(text))
		return "%sha256-" + hex.EncodeToString(sum[:]) // no escape begins with %s
	default:
		return name
	}
}

// exitFault is the exit code of a command of this program if the network, a server or this machine is at fault: that of
// commands.ExitFailed, which the program has without stepmux-fetch, too.
const exitFault = 3

// blame marks the failure of a built-in step as one of the system if the step's command says so. Only this program runs
// as such a command.
func (f *frame) blame(o outcome) outcome {
	if o.status == Failure && o.code == exitFault && f.builtin != "" && !f.isScript() {
		o = exited(o.code, "the network, a server or this machine is at fault, as the log says")
		o.system, o.server = true, true
	}
	return o
}

// forgive turns a failure of cache/restore into the output of a cache that does not exist.
func (r *Runner) forgive(g *frame, res *StepResult, o outcome) outcome {
	itself := o.status == Failure && !o.system && o.code > 0 && o.code < exitNotExecutable
	if g.builtin != lang.RestoreCacheStep || !itself {
		return o
	}
	no, err := expr.New(false)
	if err != nil {
		return failed(err)
	}
	res.Outputs = map[string]expr.Value{"restored": no}
	res.warn("the cache was not restored; the job goes on without it")
	return outcome{status: Success}
}

package gitlabci

import (
	"cmp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/remote/step/lang"
)

// Cache describes files that a job keeps for later jobs, also for those of other pipelines.
type Cache struct {
	// Key is the name of the cache. If Files is not empty, it is the beginning of the name.
	Key string
	// Files are patterns of files. Their contents are the end of the name.
	Files []string
	// Fallback are names of caches to restore if there is no cache of its own name, in order.
	Fallback []string
	// Paths are patterns of paths, from the directory of the project. Untracked adds the files that git does not track.
	Paths     []string
	Untracked bool
	// When is the outcome after which the cache is saved: on_success, on_failure or always.
	When string
	// Pull says that the job restores the cache, and Push that it saves it.
	Pull, Push bool
}

const (
	// maxCaches bounds the caches of a job, maxKeyFiles the files of a key, and maxFallback the fallback keys, as GitLab
	// does.
	maxCaches, maxKeyFiles, maxFallback = 4, 2, 5
	// defaultCache is the name of a cache without one.
	defaultCache = "default"
	// fallbackVariable has the name of one more fallback.
	fallbackVariable = "CACHE_FALLBACK_KEY"
)

// The keys of cache, and of its key in the form of a mapping.
var (
	cacheKeys    = []string{"fallback_keys", "key", "paths", "policy", "unprotect", "untracked", "when"}
	cacheKeyKeys = []string{"files", "files_commits", "prefix"}
)

// outcomes are the values of when of artifacts and caches.
var outcomes = []string{"on_success", "on_failure", lang.Always}

// readCaches reads the caches of the job, with its variables. Those without files are left out.
func (d *draft) readCaches(job *Job) {
	n := d.key("cache")
	if n == nil {
		return
	}
	t := d.file.tree
	all := t.flat("cache", n, 0)
	if len(all) > maxCaches {
		t.failf(all[maxCaches], "a job has at most %d caches", maxCaches)
	}
	for _, item := range all {
		if isNull(item) {
			continue
		}
		if item.Kind != yaml.MappingNode {
			t.failf(item, "cache must be a mapping with key and paths, or a list of them, not %s", describe(item))
			return
		}
		t.checkKeys(item, "cache", cacheKeys, "")
		if c := d.cache(item, job); len(c.Paths) > 0 || c.Untracked {
			job.Caches = append(job.Caches, c)
		}
	}
}

// cache reads one cache.
func (d *draft) cache(n *yaml.Node, job *Job) Cache {
	t, e := d.file.tree, d.pathExpander(job)
	c := Cache{
		Paths: d.paths("cache", n, "paths", e), When: d.outcome("cache", n),
		Untracked: d.yes("cache: untracked", find(n, "untracked"), false),
	}
	d.yes("cache: unprotect", find(n, "unprotect"), false)
	key := find(n, "key")
	switch {
	case isNull(key):
		c.Key = defaultCache
	case key.Kind == yaml.MappingNode:
		t.checkKeys(key, "cache: key", cacheKeyKeys, "")
		files := find(key, "files")
		if isNull(files) {
			files = find(key, "files_commits")
		}
		if isNull(files) {
			t.failf(key, "cache: key needs files, a list of at most %d files", maxKeyFiles)
			return c
		}
		if c.Files = d.texts("cache: key: files", files); len(c.Files) == 0 || len(c.Files) > maxKeyFiles {
			t.failf(files, "cache: key: files is a list of 1 or %d files", maxKeyFiles)
		}
		if prefix := find(key, "prefix"); !isNull(prefix) && d.isText("cache: key: prefix", prefix) {
			c.Key = e.expand(variable{at: prefix, value: prefix.Value})
		}
	case d.isText("cache: key", key):
		c.Key = cmp.Or(e.expand(variable{at: key, value: key.Value}), defaultCache)
	}
	if keys := find(n, "fallback_keys"); !isNull(keys) {
		for _, name := range d.texts("cache: fallback_keys", keys) {
			c.Fallback = append(c.Fallback, e.expand(variable{at: keys, value: name}))
		}
		if len(c.Fallback) > maxFallback {
			t.failf(keys, "cache has at most %d fallback_keys", maxFallback)
		}
	}
	if name := valueOf(job.Variables, fallbackVariable); name != "" {
		c.Fallback = append(c.Fallback, name)
	}
	c.Fallback = slices.DeleteFunc(c.Fallback, func(name string) bool { return name == "" })
	c.Pull, c.Push = true, true
	if policy := find(n, "policy"); !isNull(policy) {
		value := e.expand(variable{at: policy, value: policy.Value})
		c.Pull, c.Push = strings.HasPrefix(value, "pull"), strings.HasSuffix(value, "push")
		if !slices.Contains([]string{"pull", "push", "pull-push"}, value) {
			t.failf(policy, "cache: policy is pull, push or pull-push")
		}
	}
	return c
}

// pathExpander expands the variables of the job in paths. See also paths.
func (d *draft) pathExpander(job *Job) *expander {
	return d.file.expander(d.file.literal(d.file.literal(nil, job.Variables), job.inProject))
}

// paths returns the paths in the value of a key of n, from the directory of the project. Errors call n label.
func (d *draft) paths(label string, n *yaml.Node, key string, e *expander) (list []string) {
	value := find(n, key)
	if isNull(value) {
		return nil
	}
	fromProject := strings.NewReplacer(projectDir+"/", "", projectDir, ".")
	for _, path := range d.texts(label+": "+key, value) {
		list = append(list, fromProject.Replace(e.expand(variable{at: value, value: path})))
	}
	return list
}

// outcome returns the value of when of artifacts or of a cache.
func (d *draft) outcome(label string, n *yaml.Node) string {
	when := find(n, "when")
	if isNull(when) {
		return outcomes[0]
	}
	if !slices.Contains(outcomes, when.Value) {
		d.file.tree.failf(when, "%s: when is on_success, on_failure or always", label)
	}
	return when.Value
}

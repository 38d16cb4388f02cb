package gitlabdoor

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/lang"
)

// downloads returns the steps that fetch the artifacts of other jobs, and variables with their tokens.
func (p *payload) downloads(address string) (all []step, tokens []*stepmuxv1.Variable) {
	for _, d := range p.Dependencies {
		if d.File == nil || d.File.Name == "" {
			continue
		}
		id := strconv.FormatInt(d.ID, 10)
		tokens = append(tokens, &stepmuxv1.Variable{Key: dependencyToken + id, Value: d.Token, Masked: true})
		all = append(all, step{
			Name: "artifacts_of_" + id, Step: "builtin://" + lang.DownloadArtifactsStep, When: onSuccess,
			Inputs: map[string]any{"id": id, "url": address, "token": "${{ vars." + dependencyToken + id + " }}"},
			in:     downloadSection,
		})
	}
	return all, tokens
}

// uploads returns the steps that upload the artifacts of the job.
func (p *payload) uploads(vars *variables, address string) (all []step) {
	for i, a := range p.Artifacts {
		inputs := map[string]any{
			"paths": vars.expandAll(a.Paths), "exclude": vars.expandAll(a.Exclude), "url": address,
			"id": strconv.FormatInt(p.ID, 10), "token": "${{ vars." + tokenVariable + " }}",
		}
		if a.Untracked {
			inputs["untracked"] = true
		}
		for key, value := range map[string]string{
			"name": path.Base("/" + vars.expand(a.Name)), "expire_in": vars.expand(a.ExpireIn), "format": a.Format,
			"type": a.Type,
		} {
			if value != "" && value != "/" {
				inputs[key] = lang.Escape(value)
			}
		}
		s := step{
			Name: fmt.Sprintf("upload_%d", i+1), Step: "builtin://" + lang.UploadArtifactsStep, Inputs: inputs,
			in: uploadSection,
		}
		s.When = whenOf(a.When)
		all = append(all, s)
	}
	return all
}

// caches returns the key cache of the text.
func (p *payload) caches() (all []map[string]any) {
	for _, c := range p.Caches {
		cache := map[string]any{"paths": c.Paths, "untracked": c.Untracked}
		for key, value := range map[string]string{"key": c.Key, "policy": c.Policy, "when": c.When} {
			if value != "" {
				cache[key] = value
			}
		}
		if len(c.Fallback) > 0 {
			cache["fallback_keys"] = c.Fallback
		}
		all = append(all, cache)
	}
	return all
}

// name returns the name of an image that may be nil.
func (i *image) name() string {
	if i == nil {
		return ""
	}
	return i.Name
}

// container adds the keys image and services.
func (p *payload) container(job map[string]any) {
	if p.Image.name() == "" {
		return
	}
	job["image"] = p.Image.keys()
	services := []map[string]any{}
	for _, s := range p.Services {
		if s.name() != "" {
			services = append(services, s.keys())
		}
	}
	if len(services) > 0 {
		job["services"] = services
	}
}

// aliases returns the aliases of a service.
func (i *image) aliases() []string { return strings.Fields(strings.ReplaceAll(i.Alias, ",", " ")) }

// keys returns the keys of an image.
func (i *image) keys() map[string]any {
	keys := map[string]any{"name": i.Name}
	if aliases := i.aliases(); len(aliases) > 0 {
		keys["alias"] = aliases[0]
	}
	for key, list := range map[string][]string{
		"command": i.Command, "entrypoint": i.Entrypoint, "pull_policy": i.PullPolicy,
	} {
		if len(list) > 0 {
			keys[key] = list
		}
	}
	values := map[string]string{}
	for _, v := range i.Variables {
		values[v.Key] = v.Value
	}
	if len(values) > 0 {
		keys["variables"] = values
	}
	docker := map[string]any{}
	if i.Options.Docker.Platform != "" {
		docker["platform"] = i.Options.Docker.Platform
	}
	switch user := i.Options.Docker.User.(type) {
	case string:
		docker["user"] = user
	case float64: // of JSON
		docker["user"] = strconv.FormatFloat(user, 'f', -1, 64)
	}
	if len(docker) > 0 {
		keys["docker"] = docker
	}
	return keys
}

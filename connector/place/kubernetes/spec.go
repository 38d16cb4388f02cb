package kubernetes

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/stepmux/stepmux/connector/place"
	"github.com/stepmux/stepmux/connector/program"
)

// pulls are the policies by their names in the API.
var pulls = map[place.Pull]string{
	place.PullIfNotPresent: "IfNotPresent", place.PullAlways: "Always", place.PullNever: "Never",
}

// Spec describes the pod of a build. Only Image is required.
type Spec struct {
	// Spec has the image. Its Services need Kubernetes 1.29. They share the pod's network, where the alias of each is a
	// name for 127.0.0.1 and, without dots, the name of its container.
	place.Spec
	// InitImage is the image of the init container that receives the step runner's program. It needs a shell and the
	// programs cat, chmod, mkdir, mv, sleep, uname and wc. If empty, Image.
	InitImage string
	// Template is a pod manifest in YAML or JSON, for everything that this Spec does not have: node selector,
	// tolerations, service account, secrets for pulls, security contexts, volumes. Its container named build runs
	// the steps. May be empty.
	Template []byte
	// ScheduleTimeout is how long to wait for the scheduler to find a node, in a cluster that adds nodes on demand.
	// If zero, the build fails at once.
	ScheduleTimeout time.Duration
}

// Check returns an error for a Spec that cannot be made into a pod.
func (s *Spec) Check() error {
	if err := place.CheckSpec(&s.Spec, names); err != nil {
		return err
	}
	if _, err := place.ParseImage(cmp.Or(s.InitImage, s.Image)); err != nil {
		return err
	}
	if s.Platform != "" {
		return fmt.Errorf("platform %.80q: a pod has that of its node, which the template's node selector chooses",
			s.Platform)
	}
	if s.Pids > 0 {
		return errors.New("a pod takes no limit of its processes: the kubelet has one (podPidsLimit)")
	}
	if s.ScheduleTimeout < 0 {
		return errors.New("a limit of the pod is negative")
	}
	if s.User != "" && !userPattern.MatchString(s.User) {
		return fmt.Errorf("user %.80q: a pod takes a number, or two as USER:GROUP", s.User)
	}
	pod, err := s.template()
	if err != nil {
		return err
	}
	if err := s.checkTemplate(pod); err != nil {
		return err
	}
	for i := range s.Services { // a job chooses its services, and the operator the rights of such a container
		one := &s.Services[i]
		if in := take(at(pod, "spec"), "initContainers", containerOf(one)); in["image"] != nil {
			return fmt.Errorf("service %.160q: the template has an init container %q with an image of its own; give the "+
				"service another alias", one.Image, containerOf(one))
		}
	}
	return nil
}

// checkTemplate returns an error for a user or a pull policy that the template sets otherwise. A job chooses its own,
// and the operator may have meant to prevent just that.
func (s *Spec) checkTemplate(pod dict) error {
	in := at(pod, "spec")
	build := named(in, "containers", buildName)
	user, group, _ := strings.Cut(s.User, ":")
	for _, one := range []struct {
		key, want string
		places    []dict // the first that has the key counts
	}{
		{"runAsUser", user, []dict{at(build, "securityContext"), at(in, "securityContext")}},
		{"runAsGroup", group, []dict{at(build, "securityContext"), at(in, "securityContext")}},
		{"imagePullPolicy", pulls[s.Pull], []dict{build}},
	} {
		for _, at := range one.places {
			is, found := at[one.key]
			if found && one.want != "" && fmt.Sprint(is) != one.want {
				return fmt.Errorf("%s %.40q: the template of the pod has %.40q; leave out one of them", one.key, one.want,
					fmt.Sprint(is))
			}
			if found {
				break
			}
		}
	}
	return nil
}

var (
	userPattern = regexp.MustCompile(`^[0-9]{1,9}(:[0-9]{1,9})?$`)
	// namePattern matches the names of objects (RFC 1123).
	namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// names are the rules for the names of services.
var names = place.Names{
	Alias: regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`),
	Rule:  "no host name of small letters; give it another",
	Of:    containerName, Taken: []string{initName, buildName},
}

// maxTemplate bounds a template, in bytes: an object of the API cannot be much larger.
const maxTemplate = 1 << 20

// template parses the Template as a new pod.
func (s *Spec) template() (dict, error) {
	pod := dict{}
	if len(s.Template) > maxTemplate {
		return nil, fmt.Errorf("the template of the pod is longer than %d bytes", maxTemplate)
	}
	if err := yaml.Unmarshal(s.Template, &pod); err != nil {
		return nil, fmt.Errorf("the template of the pod is no manifest: %w", err)
	}
	if kind, ok := pod["kind"]; ok && kind != "Pod" {
		return nil, fmt.Errorf("the template of the pod is a %.40v: want a Pod", kind)
	}
	if _, err := json.Marshal(pod); err != nil {
		return nil, errors.New("the template of the pod has a key that is no text, or a number that JSON does not have: " +
			"write it in quotes")
	}
	for _, key := range []string{"metadata", "spec"} {
		if _, ok := pod[key].(dict); pod[key] != nil && !ok {
			return nil, fmt.Errorf("the template of the pod: %s is no mapping", key)
		}
	}
	for _, key := range []string{"containers", "initContainers", "volumes", "hostAliases"} {
		if err := checkList(at(pod, "spec"), key); err != nil {
			return nil, err
		}
	}
	return pod, nil
}

// checkList returns an error unless d[key] is missing or a list of mappings.
func checkList(d dict, key string) error {
	list, ok := d[key].([]any)
	if d[key] != nil && !ok {
		return fmt.Errorf("the template of the pod: spec.%s is no list", key)
	}
	for _, one := range list {
		if _, ok := one.(dict); !ok {
			return fmt.Errorf("the template of the pod: an entry of spec.%s is no mapping", key)
		}
	}
	return nil
}

// dict is an object of JSON.
type dict = map[string]any

const (
	// initName is the container that receives the program; buildName is the container of the steps.
	initName, buildName = "stepmux-init", "build"
	volumeName          = "stepmux"
)

// initScript waits for the programs, which are uploaded by exec. It gives up after $1 tenths of a second.
const initScript = `most=$1; shift
mkdir -p ` + place.ProgramDir + ` ` + place.RunDir + ` && chmod 1777 ` + place.RunDir + ` || exit
n=0
for file; do
  until [ -e ` + place.ProgramDir + `/"$file" ]; do
    n=$((n+1))
    if [ $n -gt "$most" ]; then echo "no program was copied to $file"; exit 1; fi
    sleep 0.1
  done
done`

// brought is the last line of bringScript. Some API servers report success for an exec that was cut.
const brought = "brought"

// bringScript receives a program named $1. It first prints its machine, so that the sender can choose the program. It
// reads the length before the program, so that a cut stream does not leave half a program.
const bringScript = `set -e
cd ` + place.ProgramDir + ` 2>/dev/null || { mkdir -p ` + place.ProgramDir + `; cd ` + place.ProgramDir + `; }
uname -m
read size
part=$1.part.$$
trap 'rm -f "$part"' EXIT
cat >"$part"
[ "$(wc -c <"$part")" -eq "$size" ]
chmod 755 "$part"
mv "$part" "$1"
echo ` + brought

// manifest returns the pod of a build. files are the names of the programs that will be uploaded.
func (p *Pod) manifest(files []string) (dict, error) {
	spec := &p.cfg.Spec
	pod, err := spec.template()
	if err != nil {
		return nil, err
	}
	pod["apiVersion"], pod["kind"] = "v1", "Pod"
	meta := at(pod, "metadata")
	meta["name"] = p.name
	delete(meta, "generateName")
	delete(meta, "namespace") // that of the cluster's configuration is used
	labels, notes := at(meta, "labels"), at(meta, "annotations")
	for _, text := range spec.Labels {
		key, value, _ := strings.Cut(text, "=")
		labels[key] = value
	}
	labels[labelBuild] = p.name
	notes[noteStart] = strconv.Itoa(int(p.cfg.StartTimeout.Seconds()))

	in := at(pod, "spec")
	in["restartPolicy"] = "Never"
	in["activeDeadlineSeconds"] = int(p.deadline().Seconds())
	setDefault(in, "automountServiceAccountToken", false)
	setDefault(in, "enableServiceLinks", false)
	setDefault(in, "terminationGracePeriodSeconds", int(endGrace.Seconds()))
	in["volumes"] = append(list(in, "volumes"), dict{"name": volumeName, "emptyDir": dict{}})

	build := named(in, "containers", buildName)
	build["image"] = spec.Image
	argv := []string{
		place.ProgramFile, "steps", "hold", "--idle", p.cfg.Linger.String(), "--first", p.cfg.StartTimeout.String(),
	}
	build["command"] = literal(program.Wrapped(spec.Entrypoint, argv))
	delete(build, "args")
	setDefault(build, "terminationMessagePolicy", "FallbackToLogsOnError")
	build["volumeMounts"] = append(list(build, "volumeMounts"), dict{"name": volumeName, "mountPath": place.Home})
	security := at(build, "securityContext")
	if user, group, _ := strings.Cut(spec.User, ":"); user != "" {
		security["runAsUser"], _ = strconv.Atoi(user) // checked
		if group != "" {
			security["runAsGroup"], _ = strconv.Atoi(group)
		}
	}
	wait := strconv.Itoa(int(p.cfg.StartTimeout.Seconds() * 10)) // as long as the manager tries
	init := dict{
		"name": initName, "image": cmp.Or(spec.InitImage, spec.Image),
		"command":                  append([]string{"sh", "-c", initScript, "sh", wait}, files...),
		"terminationMessagePolicy": "FallbackToLogsOnError",
		"volumeMounts":             []any{dict{"name": volumeName, "mountPath": place.Home}},
		"securityContext":          maps.Clone(security),
	}
	if spec.ReadOnly {
		security["readOnlyRootFilesystem"] = true
	}
	limits := dict{}
	if spec.Memory > 0 {
		limits["memory"] = strconv.FormatInt(spec.Memory, 10)
	}
	if spec.NanoCPUs > 0 {
		limits["cpu"] = strconv.FormatInt(spec.NanoCPUs, 10) + "n"
	}
	if len(limits) > 0 {
		resources := at(build, "resources")
		maps.Copy(at(resources, "limits"), limits)
		maps.Copy(at(resources, "requests"), limits)
	}
	if resources, ok := build["resources"].(dict); ok {
		init["resources"] = resources
		limits, _ = resources["limits"].(dict)
	}
	if pull := pulls[spec.Pull]; pull != "" {
		build["imagePullPolicy"] = pull
	}
	if pull, ok := build["imagePullPolicy"]; ok {
		init["imagePullPolicy"] = pull
	}
	sidecars := spec.addServices(in, limits)
	in["initContainers"] = slices.Concat([]any{init}, sidecars, list(in, "initContainers"))
	return pod, nil
}

// literal returns words for a container's command, arguments or environment that the kubelet leaves as they are: it
// replaces $(NAME) by a variable, and $$ by $.
func literal(words []string) []string {
	all := make([]string, len(words))
	for i, word := range words {
		all[i] = strings.ReplaceAll(word, "$", "$$")
	}
	return all
}

// at returns the mapping d[key], and creates it if it is missing.
func at(d dict, key string) dict {
	in, ok := d[key].(dict)
	if !ok {
		in = dict{}
		d[key] = in
	}
	return in
}

// list returns the list d[key], nil if it is missing.
func list(d dict, key string) []any {
	all, _ := d[key].([]any)
	return all
}

// named returns the entry with this name in the list d[key], and creates it if it is missing.
func named(d dict, key, name string) dict {
	for _, one := range list(d, key) {
		if one, ok := one.(dict); ok && one["name"] == name {
			return one
		}
	}
	one := dict{"name": name}
	d[key] = append([]any{one}, list(d, key)...)
	return one
}

// take removes the entry with this name from the list d[key] and returns it, or a new one if it is missing.
func take(d dict, key, name string) dict {
	all := list(d, key)
	for i, one := range all {
		if one, ok := one.(dict); ok && one["name"] == name {
			d[key] = slices.Delete(slices.Clone(all), i, i+1)
			return one
		}
	}
	return dict{"name": name}
}

func setDefault(d dict, key string, value any) {
	if _, ok := d[key]; !ok {
		d[key] = value
	}
}

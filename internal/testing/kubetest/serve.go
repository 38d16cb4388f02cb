package kubetest

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/stepmux/stepmux/internal/testing/remotetest"
)

// Object is an object of the API.
type Object = map[string]any

// Server serves the API of a cluster with one namespace. Its pods are processes of this machine. The files that a pod
// has in /.stepmux are in a directory of the pod's own. It is safe for concurrent use.
type Server struct {
	// Kubeconfig is the path of its kubeconfig, whose current context is "test" with the namespace "ci".
	Kubeconfig string
	// Answer answers a request in place of the server, unless it returns false. May be nil; set before the first request.
	Answer func(w http.ResponseWriter, r *http.Request) bool
	// Fate returns the status of a new pod that never starts, or nil for a pod that starts. May be nil; set before the
	// first request.
	Fate func(pod Object) Object
	// Sidecars are the statuses of the sidecars of pods that run. If nil, all are ready; set before.
	Sidecars []any
	// Mute ends execs without a status, as if their container had ended with them. Set it before the first request.
	Mute bool
	// Events are the warnings of all pods; set before.
	Events []string
	// Denied are verbs and resources that the login may not use, such as "create pods/exec". Set it before the first
	// request.
	Denied []string

	t    testing.TB
	http *httptest.Server
	wg   sync.WaitGroup

	mu      sync.Mutex // guards the following
	pods    map[string]*pod
	version int
	changed chan struct{}
	execs   map[io.Closer]struct{}
}

type pod struct {
	object  Object
	dir     string
	deleted bool
}

// Serve starts a Server, which ends with the test.
func Serve(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, pods: map[string]*pod{}, changed: make(chan struct{}), execs: map[io.Closer]struct{}{}}
	quiet()
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.http.Config.ErrorLog = log.New(io.Discard, "", 0) // as above
	s.http.StartTLS()
	s.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(s.Kubeconfig, []byte(fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: test, context: {cluster: c, user: u, namespace: ci}}]
current-context: test
`, s.http.URL)), 0o600))
	t.Cleanup(func() {
		s.http.CloseClientConnections()
		s.http.Close() // the pods of requests that are still served are among Pods then
		for _, name := range s.Pods() {
			s.Delete(name)
		}
		s.Cut()
		s.wg.Wait()
	})
	return s
}

// quiet makes the API server's code log nothing: otherwise it logs each connection that a test cuts.
var quiet = sync.OnceFunc(func() { klog.SetLogger(logr.Discard()) })

// Home returns the directory that stands for /.stepmux in a pod.
func (s *Server) Home(pod string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[pod].dir
}

// Pods returns the names of all pods.
func (s *Server) Pods() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name, p := range s.pods {
		if !p.deleted {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Add adds a pod that never starts.
func (s *Server) Add(object Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[at(object, "metadata")["name"].(string)] = &pod{object: object} // of a test
}

// Cut ends all execs without a status, as a killed API server does.
func (s *Server) Cut() {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.execs))
	s.mu.Unlock()
	for _, conn := range all {
		_ = conn.Close() // fails only if it has ended
	}
}

// Delete deletes a pod, as an operator does by hand, and kills its processes.
func (s *Server) Delete(name string) {
	s.mu.Lock()
	p := s.pods[name]
	if p == nil || p.deleted {
		s.mu.Unlock()
		return
	}
	p.deleted = true
	s.changeLocked(p, func(now, meta Object) {
		meta["deletionTimestamp"] = time.Now().UTC().Format(time.RFC3339)
		// The kubelet reports it so: the containers end before the pod is gone.
		if status := maps.Clone(at(now, "status")); status["phase"] == "Running" {
			maps.Copy(status, Status("Succeeded", "build", "terminated", Object{"exitCode": 0}))
			now["status"] = status
		}
	})
	s.mu.Unlock()
	if p.dir != "" {
		killAll(p.dir)
	}
}

// Terminate marks a pod as one that is being deleted, as a drain does. Its containers run on.
func (s *Server) Terminate(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changeLocked(s.pods[name], func(_, meta Object) {
		meta["deletionTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	})
}

// SetStatus changes the status of a pod, as the kubelet does.
func (s *Server) SetStatus(name string, status Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changeLocked(s.pods[name], func(now, _ Object) { now["status"] = status })
}

// Status returns the status of a pod with one container in a state, such as "running".
func Status(phase, container, state string, about Object) Object {
	kind := "containerStatuses"
	if container != "build" {
		kind = "initContainerStatuses"
	}
	return Object{"phase": phase, kind: []any{Object{
		"name": container, "imageID": "registry.test/image@sha256:0", "containerID": "test://c-" + container,
		"state": Object{state: about},
	}}}
}

// changeLocked makes a new version of a pod. edit changes a copy of it and of its metadata: the old ones may be read.
func (s *Server) changeLocked(p *pod, edit func(now, meta Object)) {
	s.version++
	now, meta := maps.Clone(p.object), maps.Clone(at(p.object, "metadata"))
	edit(now, meta)
	meta["resourceVersion"] = fmt.Sprint(s.version)
	now["metadata"] = meta
	p.object = now
	close(s.changed)
	s.changed = make(chan struct{})
}

// killAll kills all processes whose command line names dir.
func killAll(dir string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is valid
	for _, file := range files {
		text, err := os.ReadFile(file)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file))) // it is a number
		if err == nil && strings.Contains(string(text), dir) && pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
}

func at(o Object, key string) Object {
	in, _ := o[key].(Object)
	return in
}

const pods = "/api/v1/namespaces/ci/pods"

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if s.Answer != nil && s.Answer(w, r) {
		return
	}
	name, sub, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, pods), "/"), "/")
	inPods := strings.HasPrefix(r.URL.Path, pods)
	switch {
	case r.URL.Path == "/version":
		write(w, http.StatusOK, Object{"gitVersion": "v1.36.3"})
	case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
		s.review(w, r)
	case strings.HasSuffix(r.URL.Path, "/events"):
		var items []any
		for _, text := range s.Events {
			reason, message, _ := strings.Cut(text, ": ")
			items = append(items, Object{"type": "Warning", "reason": reason, "message": message})
		}
		write(w, http.StatusOK, Object{"items": items})
	case !inPods:
		Refuse(w, http.StatusNotFound, "no such path")
	case sub == "exec":
		s.exec(w, r, name)
	case r.Method == http.MethodPost:
		s.create(w, r)
	case r.Method == http.MethodDelete:
		s.remove(w, r, name)
	case r.URL.Query().Has("watch"):
		s.watch(w, r)
	case name == "":
		s.list(w, r)
	default:
		s.get(w, name)
	}
}

func write(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client may have gone
}

// Refuse answers a request with a failure.
func Refuse(w http.ResponseWriter, code int, message string) {
	write(w, code, Object{"kind": "Status", "status": "Failure", "message": message, "code": code})
}

// RefuseIf lets the server refuse some requests. Call it before the first request.
func (s *Server) RefuseIf(code int, message string, is func(r *http.Request) bool) {
	s.Answer = func(w http.ResponseWriter, r *http.Request) bool {
		refused := is(r)
		if refused {
			Refuse(w, code, message)
		}
		return refused
	}
}

func (s *Server) review(w http.ResponseWriter, r *http.Request) {
	var body Object
	_ = json.NewDecoder(r.Body).Decode(&body) // an empty one is refused
	on := at(at(body, "spec"), "resourceAttributes")
	what := fmt.Sprint(on["verb"], " ", on["resource"])
	if sub := on["subresource"]; sub != nil && sub != "" {
		what += fmt.Sprint("/", sub)
	}
	write(w, http.StatusCreated, Object{"status": Object{"allowed": !slices.Contains(s.Denied, what)}})
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var object Object
	if err := json.NewDecoder(r.Body).Decode(&object); err != nil {
		Refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	dir := remotetest.ShortTemp(s.t)
	name, _ := at(object, "metadata")["name"].(string)
	s.mu.Lock()
	if old := s.pods[name]; old != nil && !old.deleted {
		s.mu.Unlock()
		Refuse(w, http.StatusConflict, "pods "+name+" already exists")
		return
	}
	meta := at(object, "metadata")
	meta["uid"] = "uid-" + name
	meta["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	at(object, "spec")["nodeName"] = "n1"
	object["status"] = Object{"phase": "Pending"}
	p := &pod{object: object, dir: dir}
	s.pods[name] = p
	fate := Object(nil)
	if s.Fate != nil {
		fate = s.Fate(object)
	}
	s.changeLocked(p, func(Object, Object) {})
	now := p.object
	s.mu.Unlock()
	if fate != nil {
		s.SetStatus(name, fate)
	} else {
		s.wg.Go(func() { s.run(p, name, object) })
	}
	write(w, http.StatusCreated, now)
}

// run runs the init container of a pod, and then pretends that the container of the steps runs.
func (s *Server) run(p *pod, name string, object Object) {
	init, _ := at(object, "spec")["initContainers"].([]any)[0].(Object)
	var argv []string
	for _, word := range init["command"].([]any) { // of a test
		argv = append(argv, inDir(p.dir, fmt.Sprint(word)))
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	if err := s.start(p, cmd); err != nil {
		s.SetStatus(name, Status("Failed", "stepmux-init", "terminated", Object{"exitCode": 128, "message": err.Error()}))
		return
	}
	s.SetStatus(name, Status("Pending", "stepmux-init", "running", Object{}))
	if err := cmd.Wait(); err != nil {
		s.SetStatus(name, Status("Failed", "stepmux-init", "terminated", Object{"exitCode": 1, "message": err.Error()}))
		return
	}
	now, sidecars := Status("Running", "build", "running", Object{}), s.Sidecars
	for _, one := range at(object, "spec")["initContainers"].([]any)[1:] { // of a test
		if s.Sidecars == nil {
			sidecars = append(sidecars, Object{
				"name": one.(Object)["name"], "ready": true, "state": Object{"running": Object{}},
			})
		}
	}
	now["initContainerStatuses"] = sidecars
	s.SetStatus(name, now)
}

// start starts a process of a pod. It kills the process if the pod has been deleted: Delete may not have seen it.
func (s *Server) start(p *pod, cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.deleted {
		_ = cmd.Process.Kill() // it may have ended
	}
	return nil
}

// inDir returns a text with the paths of the pod's directory.
func inDir(dir, text string) string { return strings.ReplaceAll(text, "/.stepmux", dir) }

func (s *Server) get(w http.ResponseWriter, name string) {
	s.mu.Lock()
	p := s.pods[name]
	var now Object
	if p != nil && !p.deleted {
		now = p.object
	}
	s.mu.Unlock()
	if now == nil {
		Refuse(w, http.StatusNotFound, fmt.Sprintf("pods %q not found", name))
		return
	}
	write(w, http.StatusOK, now)
}

// list answers with a page of the pods. It is smaller than the caller's limit, as the API allows.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	const page = 2
	after, items, last, more := r.URL.Query().Get("continue"), []any{}, "", ""
	s.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(s.pods)) {
		if s.pods[name].deleted || name <= after {
			continue
		}
		if len(items) == page {
			more = last
			break
		}
		items, last = append(items, s.pods[name].object), name
	}
	s.mu.Unlock()
	write(w, http.StatusOK, Object{"metadata": Object{"continue": more}, "items": items})
}

func (s *Server) remove(w http.ResponseWriter, r *http.Request, name string) {
	var body Object
	_ = json.NewDecoder(r.Body).Decode(&body) // there may be none
	s.mu.Lock()
	p := s.pods[name]
	known := p != nil && !p.deleted
	uid := at(body, "preconditions")["uid"]
	same := known && (uid == nil || uid == at(p.object, "metadata")["uid"])
	s.mu.Unlock()
	switch {
	case !known:
		Refuse(w, http.StatusNotFound, fmt.Sprintf("pods %q not found", name))
	case !same:
		Refuse(w, http.StatusConflict, "the UID in the precondition does not match")
	default:
		s.Delete(name)
		write(w, http.StatusOK, Object{})
	}
}

// watch sends the changes of one pod.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	after := r.URL.Query().Get("resourceVersion")
	w.WriteHeader(http.StatusOK)
	for {
		s.mu.Lock()
		p, changed := s.pods[name], s.changed
		var now Object
		deleted := false
		if p != nil {
			now, deleted = p.object, p.deleted
		}
		s.mu.Unlock()
		if version, _ := at(now, "metadata")["resourceVersion"].(string); now != nil && version != after {
			after = version
			kind := "MODIFIED"
			if deleted {
				kind = "DELETED"
			}
			_ = json.NewEncoder(w).Encode(Object{"type": kind, "object": now}) // the client may have gone
		}
		_ = http.NewResponseController(w).Flush() // as above
		if deleted {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// Package layers tests the architecture: which package may import which.
package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/stepmux/stepmux"

// allowed says, for each package of the module, which others its non-test files may import. A
// pattern that ends in "/**" stands for the package and everything below it.
var allowed = map[string][]string{
	"pool":        {}, // the standard library only
	"pipeline":    {}, // the standard library only
	"mux/channel": {"internal/pause"},
	// The relay's client end, over any byte stream.
	"mux/relay": {
		"mux/channel", "internal/streams", "internal/wire", "internal/alive", "internal/coalesce", "internal/tail",
		"internal/hooks",
	},
	"mux/login": {
		"internal/boundedfile", "internal/firstuse", "internal/percent", "internal/spell", "internal/subprocess",
	},
	"mux": {
		"internal/plural",
		"mux/channel", "mux/relay", "mux/login",
		"internal/flight", "internal/wire", "internal/alive", "internal/tail", "internal/hooks", "internal/pause",
	},
	"connector": {
		"internal/termtext",
		"connector/program", "connector/buildlog", "connector/files", "mux", "mux/relay", "internal/wire", "internal/tail",
		"internal/flight", "internal/hooks", "internal/vmlog", "internal/pause", "remote/api/**",
		"remote/step/mask", // for another step runner, which does not mask
	},
	"connector/program": {
		"remote/api/vmconfig", "internal/termtext", "mux", "mux/relay", "internal/wire", "internal/tail",
	},
	"connector/script": {
		"remote/api/vmconfig",
		"connector/buildlog", "connector/program", "mux", "mux/relay", "internal/wire", "internal/tail", "internal/pause",
	},
	"connector/buildlog": {"internal/termtext"},
	"connector/files":    {"remote/api/**"},
	"connector/place":    {"remote/api/vmconfig", "connector", "connector/program", "internal/wire", "internal/yamltree"},
	"connector/place/docker": {
		"internal/plural",
		"connector/place", "connector", "connector/program", "mux", "mux/relay", "mux/channel", "internal/wire",
		"internal/tail", "internal/flight", "internal/termtext", "internal/pause",
	},

	"connector/place/kubernetes": {
		"connector/place", "connector", "connector/program", "mux", "mux/relay", "mux/channel", "internal/wire",
		"internal/tail", "internal/flight", "internal/termtext", "internal/pause",
	},

	"instance": {
		"instance/healthcheck",
		"remote/api/vmconfig",
		"connector/**", "mux", "pool", "internal/wire", "internal/pause", "internal/flight", "internal/labels",
		"internal/plural", "remote/api/stepmuxv1",
	},

	"instance/elastic": {}, // the standard library only
	"instance/elastic/groupfile": {
		"instance/elastic", "instance/elastic/source", "instance/inventory", "internal/boundedfile", "internal/lazyregexp",
		"internal/yamltree",
	},
	"instance/elastic/source": {"instance/elastic", "instance/inventory", "internal/subprocess", "internal/termtext"},
	"instance/inventory": {
		"instance/healthcheck",
		"remote/api/vmconfig",
		"instance", "connector", "mux", "mux/login", "internal/yamltree", "internal/lazyregexp",
	},
	"instance/batch": {
		"instance", "connector", "connector/place/**", "connector/program",
	},
	"instance/control": {
		"instance/healthcheck",
		"instance", "instance/manager/managerv1", "connector", "connector/program", "mux", "pool", "internal/filelock",
		"internal/labels", "internal/plural", "internal/termtext",
	},
	"instance/manager/managerv1": {"remote/api/stepmuxv1"},
	"instance/manager/access": {
		"instance/manager/managerv1", "internal/boundedfile", "internal/privatefile",
	},
	"instance/manager/natscall": {},
	"instance/manager/archive":  {"instance/manager/natscall", "internal/contents", "internal/plural"},
	"instance/manager/command":  {"instance", "internal/wire"},
	"instance/manager/scaler":   {"instance/elastic", "instance/elastic/source"},
	"instance/manager/seal":     {"internal/privatefile"},
	"instance/manager/claims": {
		"instance", "instance/manager/natscall", "instance/manager/state", "internal/pause", "internal/privatefile",
	},
	"instance/manager/state": {
		"connector/buildlog", "instance", "instance/manager/archive", "instance/manager/managerv1",
		"instance/manager/natscall", "instance/manager/seal", "internal/filelock", "internal/pause", "internal/plural",
		"remote/api/stepmuxv1",
	},
	"instance/manager/sshdoor": {
		"instance/manager/command", "internal/flight", "internal/pause", "internal/privatefile", "internal/wire",
	},
	"instance/manager/giteadoor": {
		"instance/manager/jobdoor", "instance/manager/managerv1", "internal/boundedfile", "internal/pause",
		"internal/servercall", "internal/sortedkeys", "internal/termtext", "internal/yamltree", "remote/api/stepmuxv1",
		"remote/step/mask",
	},
	"instance/manager/gitlabdoor": {
		"instance/manager/jobdoor", "instance/manager/managerv1", "internal/pause", "internal/servercall",
		"internal/termtext", "internal/yamltree", "remote/api/stepmuxv1", "remote/step/lang", "remote/step/mask/tokens",
	},
	"instance/manager/gitlabdoor/runnerconfig": {"instance/manager/jobdoor", "internal/sortedkeys"},
	"instance/manager/jobdoor": {
		"internal/sortedkeys",
		"instance/manager/managerv1", "internal/boundedfile", "internal/pause", "internal/termtext", "internal/yamltree",
		"remote/step/lang", // for the marks of steps
	},
	"instance/manager/page": {
		"internal/plural",
		"instance", "instance/control", "instance/manager/access", "instance/manager/managerv1", "internal/boundedhttp",
		"internal/flight", "internal/labels", "internal/likeness", "internal/termtext",
	},
	"instance/manager": {
		"remote/api/stepmuxv1",
		"instance", "instance/batch", "instance/control", "instance/manager/jobdoor", "instance/manager/gitlabdoor",
		"instance/elastic/source", "instance/manager/scaler",
		"instance/manager/managerv1", "connector", "connector/buildlog",
		"connector/place/**", "connector/files", "instance/manager/access",
		"instance/manager/archive", "instance/manager/claims", "instance/manager/command", "instance/manager/giteadoor",
		"instance/manager/natscall", "instance/manager/seal", "instance/manager/sshdoor", "instance/manager/state",
		"internal/actionservices", "internal/contents", "internal/wire", "internal/pause", "internal/rmtree",
		"internal/labels", "remote/step/lang", // for warnings about the scripts of jobs
		"internal/termtext",
	},
	// The driver of GitLab Runner's custom executor. A runner starts it several times for each job: it stays small.
	"instance/manager/customexecutor": {"instance/manager/managerv1", "internal/endsignal", "internal/pause"},
	"instance/healthcheck":            {},
	"instance/doctor": {
		"internal/plural",
		"remote/api/vmconfig",
		"instance", "instance/manager/giteadoor", "instance/manager/gitlabdoor", "connector", "connector/place/**",
		"connector/program", "mux", "mux/login",
		"internal/termtext", "internal/lazyregexp", "internal/wire",
	},
	"instance/metrics": {"instance", "instance/batch", "instance/control", "mux", "pool", "internal/boundedhttp"},

	"remote": {
		"remote/api/vmconfig", "remote/step/action", "remote/cgroup", "remote/isolate", "remote/builduser",
		"remote/relay", "remote/stale", "remote/socketdir", "remote/pipe", "remote/proc", "remote/job/service", "remote/job",
		"remote/linger", "remote/project", "remote/reach", "internal/pause", "internal/rmtree",
		"remote/step/engine", "remote/step/component", "remote/step/lang", "internal/wire",
		"internal/oserr",
	},
	"remote/builduser": {"remote/api/vmconfig", "internal/wire", "internal/filelock", "internal/oserr"},
	"remote/commands":  {"internal/wire", "internal/buildinfo", "internal/endsignal", "internal/pause"},
	"remote/commands/doors": {
		"remote/api/vmconfig", "internal/pages", "remote/step/action",
		"remote", "remote/isolate", "remote/commands", "remote/pipe", "internal/wire", "internal/buildinfo",
	},
	"remote/commands/network": {
		"remote/commands", "remote/step/fetch", "remote/pipe", "internal/endsignal", "internal/boundedfile",
		"internal/pause", "remote/archive", "remote/artifacts", "remote/jobcache", "remote/transfer", "remote/clone",
		"remote/innerport",
	},
	"remote/innerport": {}, // the standard library only
	"remote/clone":     {"internal/rmtree", "internal/netfault", "internal/oserr"},
	// The helper commands of a GitLab manager's scripts. They know no jobs and no steps.
	"remote/archive": {
		"internal/plural",
		"internal/boundedfile", "internal/boundedzip", "internal/oserr", "internal/tail", "internal/termtext",
	},
	"remote/transfer": {
		"internal/buildinfo", "internal/termtext", "internal/netfault", "internal/oserr", "internal/servercall",
	},
	"remote/artifacts": {
		"internal/plural",
		"remote/archive", "remote/transfer", "internal/filesum", "internal/buildinfo", "internal/oserr",
	},
	"remote/jobcache": {"internal/plural", "remote/archive", "remote/transfer", "internal/boundedfile", "internal/rmtree"},
	"remote/relay": {
		"internal/plural",
		"remote/stale", "remote/socketdir", "remote/pipe", "remote/proc", "internal/streams", "internal/wire",
		"internal/alive", "internal/coalesce", "internal/oserr", "internal/pause",
	},
	"remote/linger":    {"remote/api/**", "internal/wire"},
	"remote/reach":     {"remote/api/**", "internal/contents", "internal/rmtree"},
	"remote/stale":     {"remote/proc", "remote/socketdir", "remote/pipe"},
	"remote/socketdir": {"internal/wire", "internal/filelock", "internal/pause", "internal/rmtree", "internal/oserr"},
	"remote/pipe":      {"internal/wire"},
	"remote/project": {
		"remote/proc", "remote/api/**", "internal/contents", "internal/oserr", "internal/tail", "internal/wire",
	},
	"remote/job/service": {
		"internal/lazyregexp", "internal/sortedkeys",
		"remote/job", "remote/step/trace", "remote/step/engine", "remote/job/joblog", "remote/step/lang",
		"remote/step/expr", "remote/api/**", "internal/wire",
	},
	"remote/job": {
		"remote/api/vmconfig",
		"remote/step/component", "remote/step/engine", "remote/step/trace", "remote/step/trace/recording",
		"remote/job/joblog", "remote/step/mask", "remote/proc", "remote/isolate", "internal/rmtree", "internal/oserr",
	},
	"remote/step/annotation": {},
	"remote/step/engine": {
		"remote/step/annotation",
		"internal/oserr", "internal/rmtree", "internal/sortedkeys",
		"remote/step/mask", "remote/step/component", "remote/step/lang", "remote/step/expr", "remote/proc", "remote/api/**",
		"internal/wire",
	},
	"remote/step/component": {
		"remote/step/lang", "remote/api/**", "internal/filelock", "internal/sortedkeys", "internal/tail",
	},
	"remote/step/fetch": {
		"remote/pipe",
		"remote/step/component", "remote/step/lang", "remote/api/**", "internal/termtext", "internal/rmtree",
		"internal/filelock", "internal/pause", "internal/oserr", "internal/lazyregexp",
		"internal/boundedzip", "internal/netfault",
	},
	"internal/standalone": {
		"remote/step/component",
		"remote/step/action", "pipeline", "internal/boundedfile", "internal/sortedkeys",
		"internal/termtext", "remote/job/service", "remote/step/trace", "remote/step/trace/recording", "remote/job",
		"remote/step/engine", "remote/step/fetch", "internal/standalone/gitlabci", "internal/standalone/answers",
		"remote/step/lang", "remote/step/expr", "remote/step/annotation",
		"remote/step/mask", "remote/step/component", "remote/proc", "remote/isolate", "remote/api/**",
	},
	"internal/standalone/actionmirror": {
		"internal/standalone", "remote/step/action", "remote/step/lang", "remote/api/**", "internal/subprocess",
	},
	"internal/standalone/gitlabci": {
		"pipeline", "internal/plural", "internal/yamltree", "remote/step/lang", "remote/api/**",
	},
	"internal/standalone/whole": {
		"internal/standalone", "internal/standalone/checkout", "internal/standalone/whole/carry", "pipeline",
		"remote/archive", "internal/rmtree",
		"internal/boundedfile", "internal/filelock", "internal/lazyregexp", "internal/pause", "remote/jobcache",
		"remote/step/lang", "remote/step/mask", "remote/step/annotation", "internal/termtext",
	},
	"internal/standalone/whole/carry": {
		"internal/standalone", "internal/standalone/checkout", "remote/step/action", "remote/archive", "internal/rmtree",
		"internal/boundedfile",
		"remote/jobcache", "remote/transfer", "remote/step/engine",
	},
	"internal/standalone/jobplace": {
		"connector/place", "internal/standalone", "internal/standalone/whole", "remote/step/trace",
	},
	"internal/standalone/gitlabpipeline": {
		"internal/standalone", "internal/standalone/gitlabci", "internal/standalone/whole",
		"internal/standalone/whole/carry", "internal/boundedfile",
	},
	"internal/standalone/githubpipeline": {
		"internal/standalone", "internal/standalone/whole", "internal/standalone/whole/carry", "pipeline",
		"remote/step/action", "remote/step/engine",
	},
	"internal/standalone/answers": {}, // the standard library only
	// Whole pipelines for a manager, which knows no language.
	"internal/standalone/managed": {
		"instance/manager", "instance/manager/managerv1", "internal/standalone", "internal/standalone/answers",
		"internal/standalone/githubpipeline", "internal/standalone/gitlabci",
		"internal/standalone/gitlabpipeline", "internal/standalone/whole", "internal/standalone/whole/carry", "pipeline",
		"remote", "remote/api/stepmuxv1", "remote/step/engine", "remote/step/mask", "internal/rmtree",
		"connector/place", "internal/standalone/jobplace", "remote/step/action", "remote/step/trace",
	},
	"internal/standalone/checkout": {"internal/boundedfile", "internal/subprocess", "internal/standalone/gitlabci"},
	"remote/step/lang": {
		"internal/lazyregexp", "remote/step/expr", "remote/api/**", "internal/sortedkeys", "internal/spell",
		"internal/yamltree",
	},
	"remote/step/trace": {
		"remote/step/annotation", "internal/lazyregexp", "internal/sortedkeys", "remote/step/mask", "remote/step/expr",
		"remote/api/**",
	},
	"remote/step/trace/recording": {
		"internal/lazyregexp", "internal/sortedkeys",
		"remote/step/trace", "remote/step/engine", "remote/step/component", "remote/step/lang", "remote/step/expr",
		"remote/step/mask", "remote/proc", "remote/api/**", "internal/oserr", "internal/rmtree",
	},
	"internal/standalone/inspect": {"internal/termtext", "remote/step/trace", "remote/step/mask"},
	// Users of a finished trace: other formats, and replay.
	"internal/standalone/provenance": {
		"remote/step/trace", "remote/step/mask", "internal/termtext", "internal/filesum",
	},
	"internal/standalone/replay": {
		"internal/termtext", "internal/boundedfile", "internal/filesum",
		"internal/standalone", "internal/standalone/inspect", "remote/step/engine", "remote/step/fetch",
		"remote/step/component", "remote/step/trace/**",
		"remote/step/mask",
		"remote/step/lang", "remote/step/expr", "remote/api/**",
	},
	"remote/step/expr": {"internal/lazyregexp", "internal/sortedkeys", "internal/spell"},
	"remote/step/action": {
		"remote/step/annotation",
		"remote/step/action/expression", "remote/step/engine", "remote/step/component", "remote/step/lang",
		"remote/step/expr", "remote/proc", "remote/api/**", "internal/boundedfile", "internal/lazyregexp",
		"internal/netfault", "internal/sortedkeys", "internal/tail", "internal/yamltree", "internal/wire",
		"remote/innerport",
	},
	// GitHub's language of expressions, which shares nothing with that of steps.
	"remote/step/action/expression": {"internal/lazyregexp", "internal/sortedkeys"},
	"remote/proc": {
		"internal/plural", "internal/timerslack",
		"remote/api/vmconfig", "internal/pages", "internal/tail", "internal/bigstack",
		"remote/cgroup", "remote/isolate", "internal/rmtree", "internal/filelock", "internal/pause", "internal/oserr",
	},
	"remote/cgroup":     {"remote/api/vmconfig", "internal/pause"},
	"remote/isolate":    {"remote/api/vmconfig", "internal/wire", "internal/boundedfile", "internal/oserr"},
	"remote/job/joblog": {"internal/oserr"},
	"remote/step/mask":  {"internal/lazyregexp", "remote/step/expr", "remote/step/mask/tokens"},

	"remote/step/mask/tokens": {},

	"remote/api/runnerproto": {},
	"remote/api/stepmuxv1":   {},
	"remote/api/vmconfig":    {},

	"internal/streams":    {"internal/coalesce", "internal/wire"},
	"internal/wire":       {},
	"internal/contents":   {"internal/oserr"},
	"internal/buildinfo":  {"internal/filesum", "internal/wire"},
	"internal/endsignal":  {},
	"internal/pause":      {},
	"internal/labels":     {},
	"internal/lazyregexp": {},
	"internal/alive":      {},
	"internal/hooks":      {},
	"internal/flight":     {"internal/pause"},
	"internal/coalesce":   {},
	"internal/percent":    {},
	"internal/subprocess": {},
	"internal/firstuse":   {"internal/boundedfile", "internal/filelock"},
	"internal/actionservices": {
		"internal/boundedfile", "internal/boundedhttp", "internal/filesum", "internal/oserr", "internal/rmtree",
	},
	"internal/sshtarget": {
		"mux", "mux/login", "internal/boundedfile", "internal/percent", "internal/subprocess",
	},
	"internal/sortedkeys":             {},
	"internal/plural":                 {},
	"internal/spell":                  {},
	"internal/yamltree":               {"internal/spell"},
	"internal/flagfile":               {"internal/boundedfile", "internal/yamltree"},
	"internal/termtext":               {"internal/lazyregexp"},
	"internal/vmlog":                  {"internal/termtext"},
	"internal/tail":                   {},
	"internal/rmtree":                 {"internal/oserr"},
	"internal/testing/liveheap":       {},
	"internal/testing/racefree":       {},
	"internal/filelock":               {"internal/oserr", "internal/pause"},
	"internal/oserr":                  {},
	"internal/netfault":               {"internal/lazyregexp"},
	"internal/oneproc":                {"internal/bigstack"},
	"internal/bigstack":               {},
	"internal/pages":                  {},
	"internal/gcpace":                 {},
	"internal/testing/remotetest":     {"internal/wire"},
	"internal/boundedhttp":            {},
	"internal/servercall":             {"internal/boundedfile", "internal/pause"},
	"internal/privatefile":            {"internal/boundedfile", "internal/contents"},
	"internal/boundedfile":            {},
	"internal/filesum":                {"internal/boundedfile"},
	"internal/boundedzip":             {},
	"internal/embeddedvm":             {"remote/api/vmconfig", "internal/wire", "internal/timerslack"},
	"internal/timerslack":             {},
	"internal/testing/faultconn":      {},
	"internal/testing/neighbourcases": {},
	"internal/likeness":               {},
	"internal/testing/sshtest": {
		"remote/api/vmconfig",
		"internal/embeddedvm", "internal/testing/faultconn", "internal/testing/remotetest", "internal/wire",
	},
	"internal/testing/rawssh":     {"internal/testing/sshtest"},
	"internal/testing/runnertest": {"remote/api/vmconfig", "internal/testing/sshtest", "internal/wire"},
	"internal/testing/dockertest": {"internal/rmtree", "internal/testing/runnertest", "internal/testing/sshtest"},
	"internal/testing/kubetest":   {"internal/testing/dockertest", "internal/testing/remotetest", "internal/rmtree"},
	// A module of its own: the programs of a real cluster.
	"internal/testing/kubetest/control": {},
	"internal/testing/fleetsim":         {"instance/elastic"},
	"internal/testing/giteatest":        {"internal/testing/sshtest"},
	"internal/testing/gitlabtest":       {}, // the standard library only
	// A module of its own: GitLab Runner's client, and stand-ins for modules that cannot be had.
	"internal/testing/gitlabtest/runner": {"internal/testing/gitlabtest"},
	// It imitates GitLab Runner's manager, and shares no code with the programs that it drives.
	"internal/testing/stockmanager": {"remote/api/runnerproto", "internal/pause"},
	// A program that stands for another step runner.
	"internal/testing/runnertest/gitlabrunner": {
		"remote/job/service", "remote/job", "remote/proc", "remote/api/**", "internal/wire",
	},
	"internal/testing/fetchtest":     {"internal/rmtree"},
	"internal/testing/artifactstest": {},
	"internal/testing/npmtest":       {"internal/testing/runnertest"},
	// It uses the manager's packages as a Go user does, and the program as a process.
	"bench/faults": {
		"remote/api/vmconfig",
		"remote/api/stepmuxv1", "remote/isolate", "instance", "connector", "mux", "mux/login", "internal/testing/faultconn",
		"internal/pause",
	},
	"bench/faults/faultrig": {"bench/faults"},

	// The VM's end is two programs: vmsend_test.go has the lists of all that they link. stepmux-init is in stepmux-vm.
	"cmd/stepmux-init":  {"internal/oneproc", "remote/proc"},
	"internal/joinelf":  {},
	"cmd/stepmux-vm":    {"internal/oneproc", "remote/commands", "remote/commands/doors", "remote/proc"},
	"cmd/stepmux-fetch": {"remote/commands", "remote/commands/network", "internal/wire"},

	"cmd/stepmux-custom-executor": {"instance/manager/customexecutor", "internal/buildinfo"},

	// The program joins both ends. embeddedvm is its embedded VM, remote/proc the init of its processes.
	"cmd/stepmux": {
		"internal/plural", "remote/api/stepmuxv1",
		"remote/commands/**", "remote/api/vmconfig", "internal/endsignal", "internal/buildinfo", "internal/gcpace",
		"internal/flagfile",
		"instance/**", "connector", "connector/program", "connector/place/**", "mux",
		"connector/files", "mux/login", "remote", "remote/archive", "internal/subprocess",
		"internal/standalone/**",
		"remote/step/action", "remote/step/component",
		"remote/step/engine", "remote/step/fetch", "remote/step/trace/**",
		"internal/actionservices", "internal/boundedhttp", "remote/jobcache", // for workflows on this machine
		"remote/proc", "internal/wire", "internal/sshtarget", "internal/embeddedvm", "internal/rmtree", "internal/spell",
		"internal/filelock", "remote/socketdir", // for temporary directories
		"internal/termtext", "internal/boundedfile", "internal/tail", "internal/pause", "internal/likeness",
		"internal/privatefile", "internal/sortedkeys",
	},
	// The example uses servers that are made for tests.
	"examples/sources":        {"internal/testing/fetchtest"},
	"examples/library/runner": {"instance", "connector", "remote/api/stepmuxv1", "mux", "mux/login"},
	"examples/library/pool":   {"mux", "mux/login", "pool"},
	"bench":                   {"**"},
	"bench/report":            {},
}

func TestPackagesImportOnlyPackagesTheirLayerMay(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	seen := map[string]bool{}
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && file != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		pkg := path.Dir(filepath.ToSlash(rel))
		seen[pkg] = true
		may, known := allowed[pkg]
		if !known {
			t.Errorf("%s: package %s has no place in the layering; give it one in %s", rel, pkg, "internal/layers")
			return nil
		}
		for _, imported := range importsOf(t, file) {
			inner, ours := strings.CutPrefix(imported, module+"/")
			if ours && !mayImport(may, inner) {
				t.Errorf("%s imports %s, which %s may not", rel, inner, pkg)
			}
			if strings.HasPrefix(imported, "go.yaml.in/yaml/v4/plugin/") && pkg != "internal/yamltree" {
				t.Errorf("%s loads YAML by itself: internal/yamltree does that for all", rel)
			}
			if (pkg == "pool" || pkg == "pipeline") && strings.Contains(strings.SplitN(imported, "/", 2)[0], ".") {
				t.Errorf("%s imports %s: %s is standard library only", rel, imported, pkg)
			}
		}
		return nil
	})
	require.NoError(t, err)
	for pkg := range allowed {
		if pkg != "bench" { // benchmarks are test files only
			require.True(t, seen[pkg], "package %s is in the layering but not in the tree", pkg)
		}
	}
}

// The commands read flags and call packages. A function of 60 lines has logic that belongs into one of these.
func TestCommandsHaveNoLongFunctions(t *testing.T) {
	files, err := filepath.Glob("../../cmd/*/*.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, 0)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				lines := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1
				require.LessOrEqual(t, lines, 60, "%s: %s", file, f.Name.Name)
			}
		}
	}
}

func TestLayeringIsAcyclicAndNothingImportsBenchOrCmd(t *testing.T) {
	for pkg, may := range allowed {
		for _, m := range may {
			if pkg == "bench" {
				continue
			}
			require.NotContains(t, []string{"bench", "cmd/stepmux", "cmd/stepmux-vm", "**"}, m, "%s may import %s", pkg, m)
		}
	}
	done := map[string]int{} // 1 being visited, 2 done
	var visit func(pkg string)
	visit = func(pkg string) {
		require.NotEqual(t, 1, done[pkg], "the layering has a cycle through %s", pkg)
		if done[pkg] == 2 {
			return
		}
		done[pkg] = 1
		for other := range allowed {
			if other != pkg && pkg != "bench" && mayImport(allowed[pkg], other) {
				visit(other)
			}
		}
		done[pkg] = 2
	}
	for pkg := range allowed {
		visit(pkg)
	}
}

func importsOf(t *testing.T, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	require.NoError(t, err)
	var all []string
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		require.NoError(t, err)
		all = append(all, imported)
	}
	return all
}

func mayImport(may []string, pkg string) bool {
	for _, m := range may {
		prefix, tree := strings.CutSuffix(m, "**")
		if m == pkg || tree && strings.HasPrefix(pkg+"/", prefix) {
			return true
		}
	}
	return false
}

package lang

import (
	_ "embed" // for the files of built-in steps
	"fmt"
	"io"
	"strings"
	"sync"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// The built-in steps that run scripts. The names are the Reference.Path of the protocol builtin.
const (
	// ScriptStep runs the shell script in the input script, by the shell in the input shell. It continues after a line
	// that fails.
	ScriptStep = "script"
	// LegacyScriptStep is like ScriptStep, but ends with the first line that fails.
	LegacyScriptStep = "legacy/script"
	// ManagerScriptStep runs the script of a job from GitLab Runner's manager: a list of commands with the job's
	// variables as environment. It shows each command, and ends with the first that fails.
	ManagerScriptStep = "script_legacy"
)

// The built-in steps that run commands of this program.
const (
	CloneStep             = "git/clone"
	UploadArtifactsStep   = "artifacts/upload"
	DownloadArtifactsStep = "artifacts/download"
	RestoreCacheStep      = "cache/restore"
	SaveCacheStep         = "cache/save"
)

// MarkPrefix begins the lines in a job's output that tell where its steps begin and end.
const MarkPrefix = "##[step:"

// Mark writes such a line: the number of a step, and begin or its result. The token is in no output of the job itself.
// An error of a job's output is told when that is closed.
func Mark(output io.Writer, token string, step int, what string) {
	_, _ = fmt.Fprintf(output, MarkPrefix+"%s] %d %s\n", token, step, what)
}

// The files of built-in steps. Not an embed.FS: its methods cost the VM's end 11 KB.
var (
	//go:embed builtins/script_legacy.yml
	legacyFile string
	//go:embed builtins/git/clone.yml
	cloneFile string
	//go:embed builtins/github/job.yml
	gitHubJobFile string
	//go:embed builtins/artifacts/upload.yml
	uploadFile string
	//go:embed builtins/artifacts/download.yml
	downloadFile string
	//go:embed builtins/cache/restore.yml
	restoreFile string
	//go:embed builtins/cache/save.yml
	saveFile string
)

// unsupported are built-in steps of other step runners, with advice what to use instead.
var unsupported = map[string]string{
	"concrete": "the step has a whole job in a form of GitLab Runner's own; turn its feature flag FF_CONCRETE off",
	"function/oci/build": "build the image with another tool, such as docker build or buildah; it needs the step's " +
		"files and nothing else",
	"function/oci/publish": "publish the image with another tool, such as docker push or skopeo",
}

const (
	scriptURL   = "builtin://script"
	inputScript = "script"
	inputShell  = "shell"
)

// aliases are published references that mean built-in steps. They are never fetched.
var aliases = map[string]string{
	"gitlab.com/gitlab-org/components/steps/script@v1.0":        ScriptStep,
	"gitlab.com/gitlab-org/components/steps/legacy/script@v1.0": LegacyScriptStep,
}

func scriptReference() *pb.Reference {
	return &pb.Reference{Protocol: pb.Reference_builtin, Path: ScriptStep}
}

func isScript(ref *pb.Reference) bool {
	return ref.GetProtocol() == pb.Reference_builtin && (ref.GetPath() == ScriptStep || ref.GetPath() == LegacyScriptStep)
}

// builtins has functions that return the definitions of all built-in steps, by name.
var builtins = map[string]func() *pb.Definition{
	ScriptStep:            scriptDefinition,
	LegacyScriptStep:      scriptDefinition,
	ManagerScriptStep:     embedded(ManagerScriptStep, legacyFile),
	CloneStep:             embedded(CloneStep, cloneFile),
	UploadArtifactsStep:   embedded(UploadArtifactsStep, uploadFile),
	DownloadArtifactsStep: embedded(DownloadArtifactsStep, downloadFile),
	RestoreCacheStep:      embedded(RestoreCacheStep, restoreFile),
	SaveCacheStep:         embedded(SaveCacheStep, saveFile),
	GitHubJobStep:         embedded(GitHubJobStep, gitHubJobFile),
}

var scriptDefinition = sync.OnceValue(func() *pb.Definition {
	return &pb.Definition{Type: pb.DefinitionType_exec, Spec: &pb.Spec{Spec: &pb.Spec_Content{
		Inputs: map[string]*pb.Spec_Input{
			inputScript: {Type: pb.Spec_string, Sensitive: true},
			inputShell:  {Type: pb.Spec_string, Default: structpb.NewStringValue(""), Options: []string{"", "bash", "sh"}},
		},
	}}}
})

// embedded returns a function that compiles the file of a built-in step when it is first called: most builds use none.
func embedded(name, text string) func() *pb.Definition {
	return sync.OnceValue(func() *pb.Definition {
		def, err := ParseStep("builtin://"+name, []byte(text))
		if err != nil {
			panic("BUG: a built-in step: " + err.Error())
		}
		return def
	})
}

// Builtin returns the definition of the built-in step name. Do not change it.
func Builtin(name string) (*pb.Definition, error) {
	if def := builtins[name]; def != nil {
		return def(), nil
	}
	if remedy, known := unsupported[name]; known {
		return nil, fmt.Errorf("builtin://%s is not part of this version: %s", name, remedy)
	}
	return nil, fmt.Errorf("there is no step %.64q built in; there are %s", name,
		strings.Join(sortedkeys.Of(builtins), ", "))
}

// joinScript joins a script that is a list of lines.
func joinScript(d *draft, p *pb.Step) error {
	list := p.GetInputs()[inputScript].GetListValue()
	if list == nil {
		return nil
	}
	lines := make([]string, len(list.GetValues()))
	for i, v := range list.GetValues() {
		text, ok := v.GetKind().(*structpb.Value_StringValue)
		if !ok {
			return d.inputsAt.errorf("every line of the script must be a text")
		}
		lines[i] = text.StringValue
	}
	p.Inputs[inputScript] = structpb.NewStringValue(strings.Join(lines, "\n"))
	return nil
}

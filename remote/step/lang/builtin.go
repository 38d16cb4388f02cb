package lang

import (
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// The built-in steps: the Reference.Path of the protocol builtin.
const (
	// ScriptStep runs the shell script in the input script, by the shell in the input shell. It goes on after a line
	// that fails.
	ScriptStep = "script"
	// LegacyScriptStep is like ScriptStep, but ends with the first line that fails.
	LegacyScriptStep = "legacy/script"
)

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

// Builtin returns the spec of the built-in step name, or nil.
func Builtin(name string) *pb.Spec {
	if name != ScriptStep && name != LegacyScriptStep {
		return nil
	}
	return &pb.Spec{Spec: &pb.Spec_Content{Inputs: map[string]*pb.Spec_Input{
		inputScript: {Type: pb.Spec_string, Sensitive: true},
		inputShell:  {Type: pb.Spec_string, Default: structpb.NewStringValue(""), Options: []string{"", "bash", "sh"}},
	}}}
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
			return d.inputsAt.beyond().errorf("every line of the script must be a text")
		}
		lines[i] = text.StringValue
	}
	p.Inputs[inputScript] = structpb.NewStringValue(strings.Join(lines, "\n"))
	return nil
}

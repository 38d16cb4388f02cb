package lang

import (
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// The steps that are built in: Reference.Path of the protocol builtin.
const (
	// ScriptStep runs a shell script, the input script, in the shell of the input shell. A line that
	// fails does not end it.
	ScriptStep = "script"
	// LegacyScriptStep is like ScriptStep, but a line that fails ends it.
	LegacyScriptStep = "legacy/script"
)

const (
	scriptURL   = "builtin://script"
	inputScript = "script"
	inputShell  = "shell"
)

// aliases are published references to steps that are built in. They are never fetched.
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

// Builtin returns the spec of the step name, or nil if there is no such step built in.
func Builtin(name string) *pb.Spec {
	if name != ScriptStep && name != LegacyScriptStep {
		return nil
	}
	return &pb.Spec{Spec: &pb.Spec_Content{Inputs: map[string]*pb.Spec_Input{
		inputScript: {Type: pb.Spec_string, Sensitive: true},
		inputShell:  {Type: pb.Spec_string, Default: structpb.NewStringValue(""), Options: []string{"", "bash", "sh"}},
	}}}
}

// joinScript makes one text of a script that is given as a list of lines.
func joinScript(d *draft, p *pb.Step) error {
	list := p.GetInputs()[inputScript].GetListValue()
	if list == nil {
		return nil
	}
	lines := make([]string, len(list.GetValues()))
	for i, v := range list.GetValues() {
		text, ok := v.GetKind().(*structpb.Value_StringValue)
		if !ok {
			return d.inputsAt.beyond().errorf("the script's lines must all be texts")
		}
		lines[i] = text.StringValue
	}
	p.Inputs[inputScript] = structpb.NewStringValue(strings.Join(lines, "\n"))
	return nil
}

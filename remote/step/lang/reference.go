package lang

import (
	"strings"

	"github.com/stepmux/stepmux/internal/sortedkeys"
	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// reference compiles the value of step, func or action of the step p.
func (c *compiler) reference(ref *draftReference, p *pb.Step, s *scope) *pb.Reference {
	switch {
	case ref.action:
		return c.action(ref)
	case ref.long != nil:
		return c.longReference(ref, s)
	case ref.text.text == "":
		c.Fail(ref.at.errorf("the reference is empty; write where the step is, such as ./build"))
	}
	p.Step = ref.text.text
	text, literal := Literal(ref.text.text)
	if !literal {
		c.template(ref.text, s, "reference")
		return &pb.Reference{Protocol: pb.Reference_dynamic, Text: ref.text.text}
	}
	parsed, wrong := ParseReference(text)
	if wrong != nil {
		c.later(ref.at.errorf("%v", wrong))
	}
	return parsed
}

// action reads the reference to a GitHub Action.
func (c *compiler) action(ref *draftReference) *pb.Reference {
	if hasExpression(ref.text.text) {
		c.later(ref.at.errorf("an action cannot have expressions; write its name and its revision"))
	}
	action, err := ParseAction(ref.text.text)
	if err != nil {
		c.later(ref.at.errorf("%s", err))
	} else if strings.HasPrefix(action.GetPath(), Self) {
		c.later(ref.at.errorf("$/ is for the steps of workflows and of actions; here write ./directory"))
	}
	return action
}

func (c *compiler) longReference(d *draftReference, s *scope) *pb.Reference {
	ref := &pb.Reference{}
	var parts []pair
	for _, form := range longForms {
		switch {
		case d.long[form] == nil:
		case parts != nil:
			c.Fail(d.at.errorf("the reference has both %v and %v; it has one of them", ref.GetProtocol(), form))
		default:
			ref.Protocol, parts = pb.Reference_Protocol(pb.Reference_Protocol_value[form]), d.long[form]
		}
	}
	if parts == nil {
		c.Fail(d.at.errorf("the reference is empty; write git, zip or oci, or a text such as ./build"))
	}
	dynamic := false
	for _, part := range parts {
		c.template(part.value, s, part.key.text)
		_, literal := Literal(part.value.text)
		dynamic = dynamic || !literal
	}
	for _, part := range parts {
		text := part.value.text
		if !dynamic {
			text, _ = Literal(text)
		}
		setPart(ref, part.key.text, text)
	}
	if dynamic {
		ref.Form, ref.Protocol = ref.GetProtocol(), pb.Reference_dynamic
	} else if err := CheckReference(ref); err != nil {
		c.later(d.at.errorf("%v", err))
	}
	return ref
}

// longParts returns the parts of a reference in its long form. See writtenPart.
func longParts(ref *pb.Reference) map[string]*string {
	return map[string]*string{
		"url": &ref.Url, "rev": &ref.Rev, "dir": &ref.Path, "file": &ref.File, "sha256": &ref.Digest,
		"registry": &ref.Registry, "repository": &ref.Repository, "tag": &ref.Tag,
	}
}

// writtenPart returns a part of a reference as it is written in the long form.
func writtenPart(key, part string) string {
	if key == "sha256" {
		return strings.TrimPrefix(part, digestPrefix)
	}
	return part
}

// setPart sets a part of a reference in its long form.
func setPart(ref *pb.Reference, key, text string) {
	if key == "sha256" && text != "" {
		text = digestPrefix + text
	}
	*longParts(ref)[key] = text
}

// Resolve evaluates the templates in ref by eval, and returns the resulting reference.
func Resolve(ref *pb.Reference, eval func(template string) (string, error)) (*pb.Reference, error) {
	if ref.GetText() != "" {
		text, err := eval(ref.GetText())
		if err != nil {
			return nil, err
		}
		return ParseReference(text)
	}
	out := &pb.Reference{Protocol: ref.GetForm()}
	parts := longParts(ref)
	for _, key := range sortedkeys.Of(parts) {
		text, err := eval(writtenPart(key, *parts[key]))
		if err != nil {
			return nil, err
		}
		setPart(out, key, text)
	}
	return out, CheckReference(out)
}

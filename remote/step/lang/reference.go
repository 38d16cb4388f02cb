package lang

import (
	"strings"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
)

// reference compiles the value of step, func or action.
func (c *compiler) reference(d *draft, p *pb.Step, s *scope, i int) (*pb.Reference, error) {
	ref := d.ref
	switch {
	case ref.action:
		return c.action(ref)
	case ref.long:
		return c.longReference(ref, s, i)
	case ref.text.text == "":
		return nil, ref.at.errorf("the reference is empty; write where the step is, such as ./build")
	}
	p.Step = ref.text.text
	text, literal := Literal(ref.text.text)
	if !literal {
		return &pb.Reference{Protocol: pb.Reference_dynamic, Text: ref.text.text}, c.template(ref.text, s, i, "reference")
	}
	parsed, wrong := ParseReference(text)
	if wrong != nil {
		c.afterwards(func() error { return ref.at.beyond().errorf("%v", wrong) })
	}
	return parsed, nil
}

// action reads owner/repository[/path]@revision.
func (c *compiler) action(ref *draftReference) (*pb.Reference, error) {
	if ref.text.text == "" {
		return nil, ref.at.errorf("action is empty; write owner/repository@revision")
	}
	repository, rev, _ := strings.Cut(ref.text.text, "@")
	c.afterwards(func() error {
		if err := CheckRevision(rev); err != nil || repository == "" || strings.HasPrefix(repository, "-") ||
			hasExpression(ref.text.text) {
			return ref.at.beyond().errorf("the action is not valid; write owner/repository@revision")
		}
		return nil
	})
	return &pb.Reference{Protocol: pb.Reference_action, Repository: repository, Rev: rev}, nil
}

func (c *compiler) longReference(d *draftReference, s *scope, i int) (*pb.Reference, error) {
	ref := &pb.Reference{}
	var fields []field
	for _, form := range []struct {
		protocol pb.Reference_Protocol
		fields   []field
	}{{pb.Reference_git, d.git}, {pb.Reference_zip, d.zip}, {pb.Reference_oci, d.oci}} {
		switch {
		case form.fields == nil:
		case fields != nil:
			return nil, d.at.errorf("the reference has both %v and %v; it has one of them", ref.GetProtocol(), form.protocol)
		default:
			ref.Protocol, fields = form.protocol, form.fields
		}
	}
	if fields == nil {
		return nil, d.at.errorf("the reference is empty; write git, zip or oci, or a text such as ./build")
	}
	dynamic := false
	for _, f := range fields {
		if err := c.template(f.value, s, i, f.key.text); err != nil {
			return nil, err
		}
		_, literal := Literal(f.value.text)
		dynamic = dynamic || !literal
	}
	for _, f := range fields {
		text := f.value.text
		if !dynamic {
			text, _ = Literal(text)
		}
		setPart(ref, f.key.text, text)
	}
	if dynamic {
		ref.Form, ref.Protocol = ref.GetProtocol(), pb.Reference_dynamic
		return ref, nil
	}
	if err := CheckReference(ref); err != nil {
		c.afterwards(func() error { return d.at.beyond().errorf("%v", err) })
	}
	return ref, nil
}

// setPart sets a part of a reference in its long form.
func setPart(ref *pb.Reference, key, text string) {
	switch key {
	case "url":
		ref.Url = text
	case "rev":
		ref.Rev = text
	case "sha256":
		if ref.Digest = ""; text != "" {
			ref.Digest = digestPrefix + text
		}
	case "dir":
		ref.Path = text
	case "file":
		ref.File = text
	case "registry":
		ref.Registry = text
	case "repository":
		ref.Repository = text
	case "tag":
		ref.Tag = text
	}
}

// Resolve returns the value of the dynamic reference ref. eval evaluates a template.
func Resolve(ref *pb.Reference, eval func(template string) (string, error)) (*pb.Reference, error) {
	if ref.GetText() != "" {
		text, err := eval(ref.GetText())
		if err != nil {
			return nil, err
		}
		return ParseReference(text)
	}
	out := &pb.Reference{Protocol: ref.GetForm()}
	for key, template := range map[string]string{
		"url": ref.GetUrl(), "rev": ref.GetRev(), "dir": ref.GetPath(), "file": ref.GetFile(),
		"sha256":   strings.TrimPrefix(ref.GetDigest(), digestPrefix),
		"registry": ref.GetRegistry(), "repository": ref.GetRepository(), "tag": ref.GetTag(),
	} {
		text, err := eval(template)
		if err != nil {
			return nil, err
		}
		setPart(out, key, text)
	}
	return out, CheckReference(out)
}

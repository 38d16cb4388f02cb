package recording

import (
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/expr"
)

const (
	// maxRecorded bounds the large data of a trace, in bytes of JSON. Beyond it data is left out, step by step. It also
	// bounds the number of values, because each value counts as itemCost at least.
	maxRecorded = 64 << 20
	// stepCost is the estimated size of a step in a trace without its large data. textCost is that of a text in
	// addition to its length: an HMAC, and the JSON around it. itemCost is the cost of a list's item in addition to its
	// text.
	stepCost, textCost, itemCost = 2 << 10, 128, 32
)

// spend counts n bytes, and requests room for them.
func (c *Recorder) spend(n int64) {
	c.size += n
	if c.cfg.Room == nil || c.short != nil || 2*c.size <= c.room {
		return
	}
	c.room = max(4*c.size, 256<<10)
	if c.short = c.cfg.Room(c.room); c.short != nil {
		c.limit = min(c.limit, c.size)
	}
}

// afford reports whether there is room for n more bytes of step s. If so, it counts them.
func (c *Recorder) afford(s *stepRecord, n int64) bool {
	s.cut = s.cut || c.size+n > c.limit
	if !s.cut {
		c.spend(n)
		s.size += n
		s.cut = c.short != nil
	}
	return !s.cut
}

// makeRoom leaves out the large data of the last steps until there is room for n more bytes. Then it counts them.
func (c *Recorder) makeRoom(n int64) {
	for _, s := range slices.Backward(c.order) {
		if c.size+n <= c.limit {
			break
		}
		if c.size -= s.size; s.size > 0 {
			s.cut, s.size = true, 0
			s.def, s.inputs, s.envSet, s.env, s.envOf, s.argv = nil, nil, nil, nil, nil, nil
		}
	}
	c.spend(n)
}

// textSize is the size of a text in JSON.
func textSize(text string) int64 {
	n := textCost + len(text)
	for i := range len(text) {
		if text[i] < 0x20 { // \u00XX
			n += 5
		}
	}
	return int64(n)
}

func valuesSize(values map[string]expr.Value) (n int64) {
	for name, v := range values {
		n += textSize(name) + textSize(v.Text()) + itemsSize(v)
	}
	return n
}

// itemsSize returns the size of the items of v without their text: a trace has a limit of values.
func itemsSize(v expr.Value) (n int64) {
	for i := range v.Len() {
		n += 2*itemCost + itemsSize(v.Index(i)) // a list in a list counts twice
	}
	return n
}

// definitionSize is the size of a definition in JSON.
func definitionSize(def *pb.Definition) int64 {
	return int64(4*proto.Size(def)) + itemCost*valuesOf(def.ProtoReflect())
}

// valuesOf returns an upper bound of the number of values that m has in JSON.
func valuesOf(m protoreflect.Message) int64 {
	n := int64(1)
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		n++
		switch {
		case field.IsMap():
			isMessage := field.MapValue().Message() != nil
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				if n++; isMessage {
					n += valuesOf(v.Message())
				}
				return true
			})
		case field.IsList():
			n += int64(v.List().Len())
			for i := range v.List().Len() {
				if field.Message() != nil {
					n += valuesOf(v.List().Get(i).Message())
				}
			}
		case field.Message() != nil:
			n += valuesOf(v.Message())
		}
		return true
	})
	return n
}

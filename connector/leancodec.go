package connector

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// keptLists are the lists that are decoded, with the largest number of their elements: the jobs in the Status of a
// step runner, the warnings about a step, and the outputs of a job.
var keptLists = map[protoreflect.Name]int{"jobs": 1000, "warnings": 32, "given": 1000}

// leanCodec decodes the messages of a step runner, which may be hostile. It skips the lists and maps that the manager
// does not read: a sub-message of two bytes on the wire can take more than a hundred bytes decoded. Of keptLists it
// keeps the beginning.
type leanCodec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c leanCodec) Unmarshal(data mem.BufferSlice, v any) error {
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	if r, ok := v.(*carryResponse); ok {
		return r.unmarshal(buf.ReadOnlyData())
	}
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", v)
	}
	text, err := withoutLists(buf.ReadOnlyData(), m.ProtoReflect().Descriptor())
	if err != nil {
		return err
	}
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, m)
}

// carryResponse is a pb.CarryResponse that is decoded again and again into the same memory. With a new one for each
// piece, half of the garbage of an upload was pieces.
type carryResponse struct {
	data []byte
	told int64 // negative unless the message has it
}

// unmarshal decodes the wire form of a message. As in all messages, the last of several values counts.
func (r *carryResponse) unmarshal(message []byte) error {
	const dataField, toldField = 1, 2
	r.data, r.told = r.data[:0], -1
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		n := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if n < 0 {
			return protowire.ParseError(n)
		}
		switch {
		case number == dataField && kind == protowire.BytesType:
			data, _ := protowire.ConsumeBytes(message[tag:])
			r.data = append(r.data[:0], data...)
		case number == toldField && kind == protowire.VarintType:
			told, _ := protowire.ConsumeVarint(message[tag:])
			r.told = int64(told)
		}
		message = message[tag+n:]
	}
	return nil
}

// withoutLists returns the wire form of a message without unknown fields, and without its lists and maps except the
// beginning of keptLists.
func withoutLists(message []byte, d protoreflect.MessageDescriptor) ([]byte, error) {
	if isFlat(d) {
		return message, nil
	}
	var kept []byte
	seen := map[protoreflect.Name]int{}
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeField(message)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		whole := message[:n]
		message = message[n:]
		field := d.Fields().ByNumber(number)
		switch {
		case field == nil || field.IsMap():
			continue
		case field.IsList():
			if seen[field.Name()]++; seen[field.Name()] > keptLists[field.Name()] {
				continue
			}
		}
		if field.Message() == nil {
			kept = append(kept, whole...)
			continue
		}
		if kind != protowire.BytesType {
			return nil, errors.New("a message is of another kind")
		}
		_, _, tag := protowire.ConsumeTag(whole)
		inner, _ := protowire.ConsumeBytes(whole[tag:])
		inner, err := withoutLists(inner, field.Message())
		if err != nil {
			return nil, err
		}
		kept = protowire.AppendBytes(protowire.AppendTag(kept, number, kind), inner)
	}
	return kept, nil
}

// isFlat reports whether a message type has neither lists nor sub-messages.
func isFlat(d protoreflect.MessageDescriptor) bool {
	for i := range d.Fields().Len() {
		if field := d.Fields().Get(i); field.IsList() || field.IsMap() || field.Message() != nil {
			return false
		}
	}
	return true
}

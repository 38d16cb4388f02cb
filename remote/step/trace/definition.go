package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/stepmux/stepmux/internal/lazyregexp"
	"github.com/stepmux/stepmux/internal/sortedkeys"

	"google.golang.org/protobuf/encoding/protojson"

	pb "github.com/stepmux/stepmux/remote/api/stepmuxv1"
	"github.com/stepmux/stepmux/remote/step/mask"
)

// ErrMasked says that a definition is incomplete because a text with a secret was masked.
var ErrMasked = errors.New("a text of the definition was masked, as it holds a secret")

// EncodeDefinition returns def in the JSON form of protocol buffers, with the names of the proto file. redact is called
// for each text. A masked text becomes an object in its place.
func EncodeDefinition(def *pb.Definition, redact func(string) mask.Text) (json.RawMessage, error) {
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(def)
	var tree any
	if err == nil {
		err = json.Unmarshal(data, &tree)
	}
	if err == nil {
		data, err = json.Marshal(maskTree(tree, redact))
	}
	if err != nil {
		return nil, fmt.Errorf("encode definition: %w", err)
	}
	return data, nil
}

// maskTree masks the texts in a JSON tree, and the keys of its objects.
func maskTree(v any, redact func(string) mask.Text) any {
	switch v := v.(type) {
	case string:
		if t := redact(v); t.Masked {
			return t
		}
	case []any:
		for i, item := range v {
			v[i] = maskTree(item, redact)
		}
	case map[string]any:
		for _, key := range sortedkeys.Of(v) {
			item := maskTree(v[key], redact)
			if t := redact(key); t.Masked {
				delete(v, key)
				key = "[MASKED " + t.HMAC[:16] + "]"
			}
			v[key] = item
		}
	}
	return v
}

// DecodeDefinition returns the definition from which EncodeDefinition made data. The error is ErrMasked if a text in it
// was masked. Only the form of the definition is checked.
func DecodeDefinition(data json.RawMessage) (*pb.Definition, error) {
	var tree any
	err := json.Unmarshal(data, &tree)
	if err == nil && hasMasked(tree) {
		err = ErrMasked
	}
	def := &pb.Definition{}
	if err == nil {
		err = protojson.Unmarshal(data, def)
	}
	if err != nil {
		return nil, fmt.Errorf("decode definition: %w", err)
	}
	return def, nil
}

// hasMasked reports whether a JSON tree has a masked text or a masked key.
func hasMasked(v any) bool {
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, hasMasked)
	case map[string]any:
		if hmac, _ := v["hmac"].(string); len(v) == 2 && v["masked"] == true && len(hmac) == sumLen {
			return true
		}
		for key, item := range v {
			if maskedKey().MatchString(key) || hasMasked(item) {
				return true
			}
		}
	}
	return false
}

// sumLen is the length of an HMAC.
const sumLen = 64

// maskedKey matches a masked key.
var maskedKey = lazyregexp.New(`^\[MASKED [0-9a-f]{16}\]$`)

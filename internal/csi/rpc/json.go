package rpc

import (
	"bytes"
	"encoding/json"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// JSON returns a message as JSON, for people and programs: fields have the spec's names, 64-bit numbers are
// texts, and what is not set is left out. Hide its secrets before.
func JSON(message proto.Message) json.RawMessage {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	if err != nil {
		// A string that is not UTF-8; the driver has refused the request for that.
		reason, _ := json.Marshal("unreadable: " + err.Error()) //nolint:errchkjson // a string always has JSON

		return reason
	}

	// protojson varies its white space on purpose.
	var compact bytes.Buffer

	_ = json.Compact(&compact, text) // text is JSON

	return compact.Bytes()
}

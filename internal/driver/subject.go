package driver

import (
	"log/slog"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/shorten"
)

// maxSubject is how many bytes of an id, a name or a path a log line holds.
const maxSubject = 256

// loggedFields are the request fields that identify its object, with their log keys, in
// this order. None of them is secret.
var loggedFields = []struct {
	field protoreflect.Name
	as    string
}{
	{"name", "name"},
	{"volume_id", "volume"},
	{"snapshot_id", "snapshot"},
	{"group_snapshot_id", "group"},
	{"source_volume_id", "source"},
	{"source_volume_ids", "sources"},
	{"snapshot_ids", "snapshots"},
	{"base_snapshot_id", "base"},
	{"node_id", "node"},
	{"staging_target_path", "stagingPath"},
	{"target_path", "target"},
	{"volume_path", "path"},
}

// subjectOf names what a call is about.
func subjectOf(request any) []slog.Attr {
	message, ok := request.(proto.Message)
	if !ok {
		return nil
	}

	var attrs []slog.Attr

	for _, each := range loggedFields {
		if texts := rpc.Texts(message, each.field); len(texts) > 0 {
			// The rest would be truncated.
			texts = texts[:min(len(texts), maxSubject)]
			attrs = append(attrs, slog.String(each.as, shorten.End(strings.Join(texts, ","), maxSubject)))
		}
	}

	return attrs
}

package guest

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

// Mode is how something answers.
type Mode string

// The modes of a Shim. A KataRuntime has those that say so.
const (
	// OK answers both calls by Kata's URLs. Also KataRuntime's.
	OK Mode = "ok"
	// Unimplemented is what today's Kata does: it answers OK for the usage, and can't
	// resize. Also KataRuntime's.
	Unimplemented Mode = "unimplemented"
	// Legacy answers both calls, but only by the URLs that were proposed first.
	Legacy Mode = "legacy"
	// NotFound knows no URL.
	NotFound Mode = "not found"
	// Failing answers 500. KataRuntime exits with 1.
	Failing Mode = "failing"
	// Hanging never answers. KataRuntime waits for a child, which never ends.
	Hanging Mode = "hanging"
	// Stalling answers 200 and the beginning of a body, and then nothing more.
	Stalling Mode = "stalling"
	// Switching answers 101, of which no end is known, and then nothing more.
	Switching Mode = "switching protocols"
	// Dropping ends the connection without an answer, as Kata's shim in Rust does for
	// what goes wrong.
	Dropping Mode = "dropping"
	// Garbage answers 200 with an error's text. KataRuntime writes it to its output
	// and exits with 0, as Kata's does. Also KataRuntime's.
	Garbage Mode = "garbage"
	// Babbling answers 200 and far too much. Also KataRuntime's.
	Babbling Mode = "babbling"
	// Lingering is only KataRuntime's: it answers OK, and leaves a child behind that
	// keeps its output open.
	Lingering Mode = "lingering"
	// Impossible has more used and available than there is. Also KataRuntime's.
	Impossible Mode = "impossible"
)

const (
	babbleBytes       = 1 << 20
	garbage           = "mount /dev/loop0 not found in sandbox"
	failure           = "rpc error: code = Internal desc = the guest is out of memory"
	unimplemented     = "rpc error: code = Unimplemented desc = resize_volume is not implemented in kata-agent"
	impossibleNumbers = `{"usage":[{"available":30,"total":20,"used":10,"unit":1}]}`
)

// Usage is what guests say until a test says otherwise.
func Usage() mount.Usage {
	return mount.Usage{
		Bytes:  mount.Amount{Total: 1000 << 20, Used: 300 << 20, Available: 700 << 20},
		Inodes: mount.Amount{Total: 64000, Used: 11, Available: 63989},
	}
}

// encodeUsage writes as Kata does: units are numbers, and what is zero is left out.
func encodeUsage(tb testing.TB, usage mount.Usage) string {
	tb.Helper()

	type amount struct {
		Available int64 `json:"available,omitempty"`
		Total     int64 `json:"total,omitempty"`
		Used      int64 `json:"used,omitempty"`
		Unit      int   `json:"unit,omitempty"`
	}

	type condition struct {
		Message string `json:"message,omitempty"`
	}

	encoded, err := json.Marshal(struct {
		Usage     []amount  `json:"usage,omitempty"`
		Condition condition `json:"volume_condition"`
	}{
		Usage: []amount{
			{Available: usage.Bytes.Available, Total: usage.Bytes.Total, Used: usage.Bytes.Used, Unit: 1},
			{Available: usage.Inodes.Available, Total: usage.Inodes.Total, Used: usage.Inodes.Used, Unit: 2},
		},
		Condition: condition{Message: "OK"},
	})
	require.NoError(tb, err)

	return string(encoded)
}

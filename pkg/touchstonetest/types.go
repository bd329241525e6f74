package touchstonetest

import (
	"encoding/json"
	"path"
	"time"
)

// Call is a recorded call (docs/call-log.md).
type Call struct {
	// Number is that of the call in the driver's log. Numbers ascend in the order in which the
	// calls began, and begin at 1 with each start of the driver.
	Number uint64 `json:"call"`
	// Method is the full name, such as /csi.v1.Node/NodeStageVolume.
	Method  string    `json:"method"`
	Started time.Time `json:"started"`
	// Took is the duration in seconds.
	Took float64 `json:"took"`
	// Deadline is the caller's, and Timeout how many seconds after the start it is.
	Deadline *time.Time `json:"deadline,omitempty"`
	Timeout  float64    `json:"timeout,omitempty"`
	// CallerGone reports that the caller had given up, or its deadline had passed, before the
	// call ended: it has not seen this response.
	CallerGone bool                `json:"caller_gone,omitempty"`
	Metadata   map[string][]string `json:"metadata,omitempty"`
	// Code is the status as the CSI spec writes it, such as NOT_FOUND.
	Code    string `json:"code"`
	Message string `json:"message,omitempty"`
	// Objects are the ids and names in the request and the response.
	Objects []string        `json:"objects,omitempty"`
	Request json.RawMessage `json:"request,omitempty"`
	// Response is absent where the call failed, and for a stream, which has Messages. Omitted is how
	// many messages are left out.
	Response json.RawMessage   `json:"response,omitempty"`
	Messages []json.RawMessage `json:"messages,omitempty"`
	Omitted  int               `json:"omitted,omitempty"`
}

// RPC is the name of the call in the spec.
func (c *Call) RPC() string { return path.Base(c.Method) }

// Filter selects recorded calls. Each field that is set restricts it.
type Filter struct {
	// Method is a glob of the RPC's name, such as Node*Volume, or of the full name if it has a
	// slash.
	Method string `json:"method,omitempty"`
	// Code is a status code, such as NOT_FOUND or NotFound.
	Code string `json:"code,omitempty"`
	// Object is the id or name of a volume, snapshot or group. By the name of an object its
	// later calls are found too, which have only its id, if its creation is recorded.
	Object string `json:"object,omitempty"`
	// Since selects calls that began then or later; SinceCall those with a greater number.
	Since     *time.Time `json:"since,omitempty"`
	SinceCall uint64     `json:"since_call,omitempty"`
	// JQ is a jq filter: a call is selected if an output is neither false nor null.
	JQ string `json:"jq,omitempty"`
}

// Hit is one effect of a fault rule.
type Hit struct {
	At   time.Time `json:"at"`
	Rule string    `json:"rule"`
	// Number counts the hits of the rule.
	Number int `json:"number"`
	// Method is the RPC, or the point of an operation.
	Method string `json:"method"`
	// Object is the id or name of the call's volume, snapshot, group or node.
	Object string `json:"object,omitempty"`
	// Act has the keys of act.
	Act string `json:"act"`
}

// Violation is a violation of the spec by the CO (docs/strict.md).
type Violation struct {
	ID string `json:"id"`
	// What is what the CO did.
	What string `json:"what"`
	// Rows are the rows of docs/spec.md that it cites.
	Rows []string `json:"spec"`
	// Remedy is what the CO should do.
	Remedy string `json:"remedy"`
	// Object is the id or name of the volume, snapshot or group, or else the RPC.
	Object string `json:"object"`
	// Name is the name of the volume, if the driver knows it.
	Name  string    `json:"name,omitempty"`
	Count uint64    `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Method, Call and Detail are those of the last call. Call is its number in the call log.
	Method string `json:"method"`
	Call   uint64 `json:"call"`
	Detail string `json:"detail"`
	// Refused: the last call was refused (--strict=refuse).
	Refused bool `json:"refused,omitempty"`
}

// Leak is an object, or a use of one, that the CO has made and not removed.
type Leak struct {
	// Kind is volume, snapshot, attachment, staging or publication.
	Kind string `json:"kind"`
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	// At is the node of an attachment, and the path of a staging or publication.
	At string `json:"at,omitempty"`
	// Made is the call that made it, and Missing the one that removes it.
	Made    string `json:"made"`
	Missing string `json:"missing"`
}

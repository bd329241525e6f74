package faults

import (
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// ErrRule is wrapped by the error of each mistake in a rule.
var ErrRule = errdefs.New(errdefs.ErrInvalidArgument, "fault rule")

// Rule says which calls fail how, and until when. The keys of this and the other types are described in
// keyTexts.
type Rule struct {
	Name  string `yaml:"name,omitempty"`
	Match Match  `yaml:"match,omitempty"`
	Until *Until `yaml:"until,omitempty"`
	Act   Act    `yaml:"act"`

	// line is where it begins in its document, and methods are the RPCs that it applies to.
	line    int
	methods map[string]bool
}

// Match are the conditions of a rule.
type Match struct {
	Method      Patterns `yaml:"method,omitempty"`
	Volume      Patterns `yaml:"volume,omitempty"`
	Snapshot    Patterns `yaml:"snapshot,omitempty"`
	Group       Patterns `yaml:"group,omitempty"`
	Node        Patterns `yaml:"node,omitempty"`
	Where       Filter   `yaml:"where,omitempty"`
	Calls       Calls    `yaml:"calls,omitempty"`
	Probability *float64 `yaml:"probability,omitempty"`
	At          Point    `yaml:"at,omitempty"`
}

// Until ends a rule.
type Until struct {
	Hits  int           `yaml:"hits,omitempty"`
	After time.Duration `yaml:"after,omitempty"`
	Time  time.Time     `yaml:"time,omitempty"`
}

// Act is what a rule does. Its parts may be combined where that makes sense.
type Act struct {
	Before         *Failure   `yaml:"before,omitempty"`
	After          *Failure   `yaml:"after,omitempty"`
	Unimplemented  bool       `yaml:"unimplemented,omitempty"`
	RequireSecrets []string   `yaml:"require_secrets,omitempty,flow"`
	Lose           Loss       `yaml:"lose,omitempty"`
	Cut            *int       `yaml:"cut,omitempty"`
	Delay          *Delay     `yaml:"delay,omitempty"`
	Hold           string     `yaml:"hold,omitempty"`
	Patch          Filter     `yaml:"patch,omitempty"`
	Endless        bool       `yaml:"endless,omitempty"`
	Condition      *Condition `yaml:"condition,omitempty"`
	Crash          bool       `yaml:"crash,omitempty"`
	Start          *Start     `yaml:"start,omitempty"`
	Socket         *Socket    `yaml:"socket,omitempty"`
}

// Failure is an error that a call returns.
type Failure struct {
	Code    Code     `yaml:"code"`
	Message string   `yaml:"message,omitempty"`
	Details []Detail `yaml:"details,omitempty"`
}

// Detail is a message that a status contains, of a type of google.rpc.
type Detail struct {
	message *anypb.Any
	node    *yaml.Node
}

// Loss is how a response is lost.
type Loss string

// The losses.
const (
	Hang  Loss = "hang"
	Reset Loss = "reset"
)

// Delay are waits.
type Delay struct {
	Before time.Duration `yaml:"before,omitempty"`
	After  time.Duration `yaml:"after,omitempty"`
}

// Condition makes volumes unhealthy.
type Condition struct {
	Status  ConditionStatus `yaml:"status"`
	Reason  string          `yaml:"reason"`
	Message string          `yaml:"message,omitempty"`
	View    View            `yaml:"view,omitempty"`
}

// View is whose conditions of volumes.
type View string

// The views.
const (
	NodeView       View = "node"
	ControllerView View = "controller"
)

// Start is what happens when the driver starts.
type Start struct {
	Delay time.Duration `yaml:"delay"`
}

// Socket is what happens to the driver's socket.
type Socket struct {
	Vanish time.Duration `yaml:"vanish"`
}

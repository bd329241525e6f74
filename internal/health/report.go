package health

import (
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
)

// Report has the health of all volumes and pools of a driver, as `touchstone ctl
// volume health -o json` prints it and the status page shows it.
type Report struct {
	Driver  string    `json:"driver"`
	Version string    `json:"version"`
	Node    string    `json:"node"`
	Mode    string    `json:"mode"`
	At      time.Time `json:"at"`
	// Registered says whether the kubelet has registered the driver; nil if the driver
	// does not register itself.
	Registered *bool `json:"registered,omitempty"`
	// Sources are the event sources by view.
	Sources map[string][]SourceStatus `json:"sources"`
	// Storage are the pools and the state store.
	Storage []StorageReport `json:"storage"`
	Volumes []VolumeReport  `json:"volumes"`
	// Changes are the newest first.
	Changes []Change `json:"changes"`
	// Faults are the active fault rules (docs/faults.md).
	Faults []FaultReport `json:"faults,omitempty"`
}

// FaultReport is one fault rule.
type FaultReport struct {
	Rule string `json:"rule,omitempty"`
	// At is the rule's method or point, Act what it does.
	At   string `json:"at,omitempty"`
	Act  string `json:"act,omitempty"`
	Hits int    `json:"hits"`
	// Problem is why the file of rules is not applied. The other fields are empty then.
	Problem string `json:"problem,omitempty"`
}

// StorageReport is one pool, or the state store.
type StorageReport struct {
	Name       string            `json:"name"`
	Kind       string            `json:"kind"` // "pool" or "state"
	Path       string            `json:"path"`
	Bytes      *Amount           `json:"bytes,omitempty"`
	Conditions []ConditionReport `json:"conditions"`
}

// VolumeReport is one volume as this process observes it.
type VolumeReport struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	Pool string `json:"pool,omitempty"`
	// FSType is empty for raw block and directories; Backing distinguishes them.
	FSType        string         `json:"fsType,omitempty"`
	Backing       volume.Backing `json:"backing,omitempty"`
	CapacityBytes int64          `json:"capacityBytes,omitempty"`
	// AccessMode is the access mode with which this node has staged it.
	AccessMode string `json:"accessMode,omitempty"`
	// MountFlags is how many mount flags this node has staged it with; they themselves may hold secrets.
	MountFlags int `json:"mountFlags,omitempty"`
	// Staged and Published are the paths at which this node uses it, ReadOnly those of Published that are
	// read-only, Persistent those that each start of the driver mounts again.
	Staged     string            `json:"staged,omitempty"`
	Published  []string          `json:"published,omitempty"`
	ReadOnly   []string          `json:"readOnly,omitempty"`
	Persistent []string          `json:"persistent,omitempty"`
	Usage      *Usage            `json:"usage,omitempty"`
	Conditions []ConditionReport `json:"conditions"`
	Check      *CheckReport      `json:"check,omitempty"`
}

// ConditionReport is an entry of one view.
type ConditionReport struct {
	Entry

	// View is "node", "controller" or "storage".
	View  string    `json:"view"`
	Since time.Time `json:"since"`
}

// CheckReport has the results of checks of a volume's filesystem.
type CheckReport struct {
	// At and Verdict are the newest check's: clean, repaired, damaged or failed (it
	// could not run); Detail is the tool's output.
	At      time.Time     `json:"at"`
	Verdict string        `json:"verdict"`
	Detail  string        `json:"detail,omitempty"`
	Took    time.Duration `json:"took"`
	// How is stage, offline or online.
	How string `json:"how"`
	// CleanAt is the time of the last check that was clean, or repaired everything.
	CleanAt time.Time `json:"cleanAt,omitzero"`
	// Period is the time between two checks; 0 is never.
	Period time.Duration `json:"period"`
}

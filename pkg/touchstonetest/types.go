package touchstonetest

import (
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
)

type (
	// Config is the whole configuration of a driver, for Configure.
	Config = driver.Config
	// Call is a recorded call (docs/call-log.md).
	Call = calls.Call
	// Filter selects recorded calls. Each field that is set restricts it.
	Filter = calls.Filter
	// Hit is one effect of a fault rule.
	Hit = faults.Hit
	// Violation is a violation of the spec by the CO (docs/strict.md).
	Violation = strict.Violation
)

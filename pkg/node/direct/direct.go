package direct

import (
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
)

// Config is what direct volumes depend on.
type Config struct {
	// Config is that of all ways of access. The records of volumes have how far their filesystems were grown.
	access.Config

	Runtimes kata.Runtimes
	Shared   access.Shared
}

// New returns the access of direct volumes.
func New(config Config) *Access {
	raw := config.Shared.RawDevice
	guard := &Guard{config: &config}

	return &Access{
		RawDevice: raw, Guard: guard,
		Assignments: &Assignments{config: &config, guard: guard, raw: raw}, config: &config,
	}
}

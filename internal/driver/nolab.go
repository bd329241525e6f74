//go:build nolab

package driver

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

func (d *Driver) openLab(prometheus.Registerer) (hooks, error) { return hooks{}, checkLab(&d.config) }

// checkLab refuses the settings of the lab.
func checkLab(c *Config) error {
	if c.Faults != "" || c.EnableFaults || c.CallLog != "" || c.Strict != "" {
		return fmt.Errorf("%w: faults, enable-faults, call-log and strict: this driver was built without them (tag nolab)", ErrConfig)
	}

	return nil
}

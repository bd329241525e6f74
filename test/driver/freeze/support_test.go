package freeze_test

import (
	"testing"
	"time"

	"github.com/touchstone-csi/touchstone/test/harness"
)

// takeOver stops the driver, whose volumes stay mounted, and returns its node.
// At the end of the test the driver is back.
func takeOver(t *testing.T, d *harness.Driver, limit time.Duration) *harness.Node {
	t.Helper()

	return harness.TakeOver(t, d, limit, nil)
}

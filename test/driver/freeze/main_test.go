package freeze_test

import (
	"testing"

	"github.com/touchstone-csi/touchstone/test/harness"
)

func TestMain(m *testing.M) {
	freezeIfAsked()
	harness.Main(m)
}

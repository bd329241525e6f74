package conformance_test

import (
	"os"
	"testing"

	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestMain(m *testing.M) {
	harness.ServeIfAsked()
	os.Exit(namespace.Main(m))
}

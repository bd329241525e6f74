package driver_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestMain(m *testing.M) {
	harness.ServeIfAsked()
	faults.ServeIfAsked()
	freezeIfAsked()

	code := namespace.Main(m)

	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left:", err)

			code = 1
		}
	}

	os.Exit(code)
}

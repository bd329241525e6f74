package pool_test

import (
	"fmt"
	"maps"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

func TestMain(m *testing.M) {
	if os.Getenv(copierPool) != "" {
		os.Exit(beCopier())
	}

	if os.Getenv(adopterPool) != "" {
		os.Exit(beAdopter())
	}

	faults.ServeIfAsked()
	maps.Copy(onceOperations, onceReads)
	syscallfault.ServeIfAsked(onceOperations)

	code := namespace.Main(m)

	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left:", err)

			code = 1
		}
	}

	os.Exit(code)
}

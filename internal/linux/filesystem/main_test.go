package filesystem_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(allOnceOperations())

	if os.Getenv(driverScript) != "" {
		if err := driver(); err != nil {
			panic(err)
		}

		os.Exit(0)
	}

	namespace.Enter()

	if os.Getuid() != 0 {
		goleak.VerifyTestMain(m)
	}

	goleak.VerifyTestMain(m, goleak.Cleanup(exitClean))
}

func exitClean(code int) {
	devices, err := left()
	if err != nil || len(devices) > 0 {
		fmt.Fprintln(os.Stderr, "loop devices are left:", devices, err)

		code = max(code, 1)
	}

	os.Exit(code)
}

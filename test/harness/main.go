package harness

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/leftover"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// Main is the TestMain of tests that start drivers: it runs them in a mount namespace of their
// own, fails them if a goroutine or an open file is left, and ends the process. In a process that StartProcess
// or faults.Serve started it serves instead.
func Main(m *testing.M) {
	ServeIfAsked()
	faults.ServeIfAsked()
	flag.Parse()
	limitParallel()
	// Go's default collects most for drivers that are about to end.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}

	namespace.Enter()

	before, err := leftover.Opened()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}

	code := m.Run()

	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left:", err)

			code = 1
		}

		if found, err := openedSince(before); err != nil || len(found) > 0 {
			fmt.Fprintln(os.Stderr, found, err)

			code = 1
		}
	}

	os.Exit(code)
}

// limitParallel limits how many parallel tests run at a time, unless -parallel does. The go
// command tests as many packages at a time as there are cores, and all of their drivers share
// the 128 inotify and fanotify instances that the kernel allows a user by default.
func limitParallel() {
	const all = 24

	given := false

	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })

	if cores := runtime.GOMAXPROCS(0); !given && cores*cores > all {
		_ = flag.Set("test.parallel", strconv.Itoa(max(2, all/cores)))
	}
}

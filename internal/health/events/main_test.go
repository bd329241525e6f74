package events_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestMain(m *testing.M) {
	namespace.Enter()

	if os.Getuid() != 0 {
		goleak.VerifyTestMain(m)
	}

	goleak.VerifyTestMain(m, goleak.Cleanup(exitClean))
}

func exitClean(code int) {
	devices, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
	left := slices.DeleteFunc(devices, func(s loop.Attachment) bool {
		return s.Number < firstLoop || s.Number > lastLoop
	})

	if err != nil || len(left) > 0 {
		fmt.Fprintln(os.Stderr, "loop devices are left:", left, err)

		code = max(code, 1)
	}

	os.Exit(code)
}

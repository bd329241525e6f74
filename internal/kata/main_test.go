package kata_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestMain(m *testing.M) {
	namespace.Enter()
	goleak.VerifyTestMain(m)
}

package kata_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(onceOperations)
	namespace.Enter()
	goleak.VerifyTestMain(m)
}

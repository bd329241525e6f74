package observe_test

import (
	"os"
	"testing"

	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(onceOperations())
	os.Exit(namespace.Main(m))
}

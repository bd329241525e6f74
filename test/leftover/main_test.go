package leftover_test

import (
	"testing"

	"github.com/touchstone-csi/touchstone/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

package demo

import (
	"os"
	"testing"

	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestMain(m *testing.M) { os.Exit(namespace.Main(m)) }

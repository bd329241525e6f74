package changedblocks_test

import (
	"flag"
	"os"
	"testing"

	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(onceOperations)

	// Each check writes and syncs images on eight filesystems, and takes seconds on a slow disk. Each
	// run draws others; -rapid.checks=100 is the library's own number.
	if err := flag.Set("rapid.checks", "30"); err != nil {
		panic(err)
	}

	os.Exit(namespace.Main(m))
}

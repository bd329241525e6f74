package syscallfault_test

import (
	"flag"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

const (
	// sampled is how many random injections `make test` runs, beside found, of so
	// many lifecycles on each kind of pool.
	sampled      = 40
	sampledLives = 2
)

var (
	injections = flag.Int("injections", environment("TOUCHSTONE_INJECTIONS", sampled), "how many random injections run; -1 is all")
	seed       = flag.Int64("seed", int64(environment("TOUCHSTONE_INJECTION_SEED", int(time.Now().UnixNano()))), "what the sample is drawn with")
	only       = flag.String("only", os.Getenv("TOUCHSTONE_INJECTION"), "the one injection to run, as a failure prints it; * at the end is any rest")
	given      = flag.String("driver", "", "the binary to test instead of one that is built")
	listed     = flag.Bool("list", false, "print the calls of each lifecycle instead")
)

func TestMain(m *testing.M) {
	syscallfault.LaunchIfAsked()
	flag.Parse()
	os.Exit(namespace.Main(m))
}

func environment(name string, otherwise int) int {
	if given, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return given
	}

	return otherwise
}

package crash_test

import (
	"flag"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

const (
	// defaultKills keep `make test` short; `make test-crash` asks for 200.
	defaultKills = 20
	// defaultPoints keep `make test` short; `make test-power` asks for 300.
	defaultPoints = 12
)

func TestMain(m *testing.M) {
	faults.ServeIfAsked()
	flag.Int64("kills", fromEnvironment("TOUCHSTONE_CRASH_KILLS", defaultKills), "how often the driver is killed under mixed load")
	flag.Int64("points", fromEnvironment("TOUCHSTONE_POWER_POINTS", defaultPoints), "after how many power failures the driver is started")
	flag.Int64("seed", fromEnvironment("TOUCHSTONE_CRASH_SEED", time.Now().UnixNano()), "what all random choices come from")
	flag.Parse()
	os.Exit(namespace.Main(m))
}

func fromEnvironment(name string, otherwise int64) int64 {
	if given, err := strconv.ParseInt(os.Getenv(name), 10, 64); err == nil {
		return given
	}

	return otherwise
}

func number(t *testing.T, name string) int64 {
	t.Helper()

	value, ok := flag.Lookup(name).Value.(flag.Getter)
	require.True(t, ok, "want: the flag has a value")

	given, ok := value.Get().(int64)
	require.True(t, ok, "want: the flag is a number")

	return given
}

package leftover_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/leftover"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// recorder is a test that keeps its failures, and ends with a call of end.
type recorder struct {
	testing.TB

	failures []string
	cleanups []func()
}

func (r *recorder) Helper()                {}
func (r *recorder) Cleanup(cleanup func()) { r.cleanups = append(r.cleanups, cleanup) }
func (r *recorder) Failed() bool           { return len(r.failures) > 0 }
func (r *recorder) Error(all ...any)       { r.failures = append(r.failures, fmt.Sprint(all...)) }

func (r *recorder) Errorf(format string, all ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, all...))
}

func (r *recorder) end() {
	for _, cleanup := range slices.Backward(r.cleanups) {
		cleanup()
	}
}

// TestTheHarnessFailsTests leaves something in a test with a driver, in this process or in one of its own.
func TestTheHarnessFailsTests(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	hold := make(chan struct{})
	t.Cleanup(func() { close(hold) })

	for name, each := range map[string]struct {
		kind   leftover.Kind
		option harness.Option
		leave  func(*testing.T, *harness.Driver)
	}{
		"an image": {kind: leftover.Entry, leave: func(t *testing.T, d *harness.Driver) {
			t.Helper()
			harness.WriteFile(t, filepath.Join(d.Pool(), "images", gone+".img"), "data")
		}},
		"an assignment": {kind: leftover.Entry, leave: func(t *testing.T, d *harness.Driver) {
			t.Helper()
			require.NoError(t, os.MkdirAll(filepath.Join(d.Config.Node.Direct.Root, gone), 0o700))
		}},
		"a record": {kind: leftover.Record, leave: func(t *testing.T, d *harness.Driver) {
			t.Helper()
			d.Stop()
			require.NoError(t, os.RemoveAll(d.Config.StateDir))
			write(t, d.Config.StateDir, "uses", gone, use)
			require.NoError(t, os.WriteFile(filepath.Join(d.Pool(), "images", present+".img"), nil, 0o600))
		}},
		"a descriptor": {kind: leftover.Descriptor, leave: func(t *testing.T, d *harness.Driver) {
			t.Helper()
			opened, err := os.Open(d.Config.StateDir)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, opened.Close()) })
		}},
		"a goroutine": {kind: leftover.Goroutine, option: func(c *driver.Config) {
			c.Also = func(grpc.ServiceRegistrar) {
				go func() { <-hold }()
			}
		}},
		"an id in memory": {kind: leftover.Memory, option: func(c *driver.Config) { c.NodeID = gone }},
		"a series":        {kind: leftover.Series, option: func(c *driver.Config) { c.Commit = gone }},
		"nothing":         {},
	} {
		for _, declared := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " declared ", declared), func(t *testing.T) {
				t.Parallel()

				test := &recorder{TB: t}

				d := harness.Start(test, func(c *driver.Config) {
					if each.option != nil {
						each.option(c)
					}
				})

				if declared {
					d.Leaves("the subject of this test", leftover.Kinds...)
				}

				if each.leave != nil {
					each.leave(t, d)
				}

				test.end()

				if declared || each.kind == "" {
					require.Empty(t, test.failures, "want: what is declared, or not left, fails no test")
				} else {
					require.Contains(t, strings.Join(test.failures, "\n"), string(each.kind)+" is left: ")
				}
			})
		}
	}
}

// TestTheHarnessFailsTestsOfProcesses has a driver that finds at its end what it has left.
func TestTheHarnessFailsTestsOfProcesses(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	test := &recorder{TB: t}
	harness.StartProcess(test, func(c *driver.Config) { c.Commit = gone })
	test.end()
	require.Contains(t, strings.Join(test.failures, "\n"), "series is left: ")
}

package embedded_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool/embedded"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

// ensuring returns an operation that ensures the pool in a directory, and closes it at its end.
func ensuring(options embedded.Options) syscallfault.Operation {
	return func(directory string) (run, end func() error, err error) {
		options := options
		options.Directory = filepath.Join(directory, "pool")

		var pool *embedded.Pool

		return func() error {
				made, err := embedded.Ensure(context.Background(), options)
				if err != nil {
					return err
				}

				pool = made

				return syscallfault.Differs("the directory with the pool's objects", options.Directory+"/mounted", made.Directory())
			}, func() error {
				if pool == nil {
					return nil
				}

				return pool.Close(context.Background())
			}, nil
	}
}

// closing returns an operation that closes the pool of an image that is there.
func closing(directory string) (run, end func() error, err error) {
	options := embedded.Options{Directory: filepath.Join(directory, "pool")}
	pool, err := embedded.Ensure(context.Background(), options)

	return func() error {
		if pool == nil {
			// As the next driver, after a failure.
			if pool, err = embedded.Ensure(context.Background(), options); err != nil {
				return err
			}
		}

		closed := pool
		pool = nil

		return closed.Close(context.Background())
	}, func() error { return nil }, err
}

var onceOperations = map[string]syscallfault.Operation{
	"make":    ensuring(embedded.Options{Bytes: small, Filesystem: filesystem.XFS}),
	"enlarge": ensuring(embedded.Options{Bytes: larger}),
	"adopt":   ensuring(embedded.Options{}),
	"close":   closing,
	"locate": func(directory string) (run, end func() error, err error) {
		return func() error {
			found, err := embedded.Locate(filepath.Join(directory, "pool"))
			if err != nil {
				return err
			}

			return syscallfault.Differs("where the pool is mounted", filepath.Join(directory, "pool", "mounted"), found)
		}, func() error { return nil }, nil
	},
}

// onceUnreported matches the calls whose failure has no effect: those for a mount that is found in another way;
// whether the filesystem can share blocks; the removal of what is missing. Those about loop devices may be about
// another test's, which is being detached.
var onceUnreported = regexp.MustCompile(`^(fstat|statx |statmount |pwrite64 |ioctl\+0x40049409 |openat\+0x490002 |unlinkat pool/pool.img.making|` +
	`\S+ /(dev|sys)/)`)

// TestEachCallFailsOnce has each system call fail once by which a pool is made, mounted, adopted and
// enlarged, and unmounted. It succeeds when it is repeated, leaves no device and no mount, and no damage.
func TestEachCallFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	unmounted := func(t *testing.T, directory string) {
		t.Helper()

		pool, err := embedded.Ensure(t.Context(), embedded.Options{
			Directory: filepath.Join(directory, "pool"), Bytes: small, Filesystem: filesystem.XFS,
		})
		require.NoError(t, err)
		end(t, pool)
	}
	left := func(t *testing.T, directory string) {
		t.Helper()
		died(t, filesystem.XFS, filepath.Join(directory, "pool"), small)
	}

	for name, test := range map[string]struct {
		prepare func(t *testing.T, directory string)
		bytes   int64
	}{
		"make":    {nil, small},
		"enlarge": {left, larger},
		"adopt":   {left, small},
		"close":   {unmounted, small},
		"locate":  {left, small},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
				Operation: name, Mounts: true, Prepare: test.prepare, Lossy: []string{".", "pool", "pool/#*", "pool/mounted", "pool/mounted/*"},
				Causes: true, Reported: []string{""}, Unreported: onceUnreported,
				// A pool whose free space is unknown is used as it is, and does not grow.
				Except: regexp.MustCompile("^fstatfs pool#"),
				Verify: func(t *testing.T, directory string) {
					t.Helper()

					image := filepath.Join(directory, "pool", "pool.img")
					require.Equal(t, test.bytes, size(t, image), "want: the image has its size")

					if name == "locate" {
						attached := devices(t, directory)
						require.NoError(t, unix.Unmount(filepath.Join(directory, "pool", "mounted"), 0))

						for _, device := range attached {
							require.NoError(t, loop.NewLoops(loop.LoopsOptions{}).AwaitDetached(t.Context(), device.Number, device.Sequence))
						}
					}

					nothingIsLeft(t, directory)
					requireSound(t, filesystem.XFS, image)
					require.NoError(t, os.RemoveAll(directory))
				},
			})
		})
	}
}

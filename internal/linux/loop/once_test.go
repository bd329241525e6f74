package loop_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

const (
	// onceBytes is the size of an image, which grows to twice of it.
	onceBytes = mebibyte
	// onceLimit is for another program that opens each device, as udev does.
	onceLimit = 10 * time.Second
)

func onceLoops() *loop.Loops { return loop.NewLoops(loop.LoopsOptions{First: firstOnce}) }

// ofImage returns an operation of the image in a directory. before is how it is attached at first. Its
// error must be that of the call that was made to fail.
func ofImage(run func(ctx context.Context, loops *loop.Loops, image *os.File, before []loop.Status) error) syscallfault.Operation {
	return func(directory string) (func() error, func() error, error) {
		image, err := os.OpenFile(filepath.Join(directory, "volume.img"), os.O_RDWR, 0)
		if err != nil {
			return nil, nil, err
		}

		loops := onceLoops()
		before, err := loops.Find(image)

		return func() error {
			ctx, cancel := context.WithTimeout(context.Background(), onceLimit)
			defer cancel()

			err := run(ctx, loops, image, before)
			if err == nil || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EMFILE) {
				return err
			}

			return syscallfault.Differs("the report", "that of the failed call", err)
		}, image.Close, err
	}
}

// attachOnce attaches an image, or finds it attached, and closes the device.
func attachOnce(ctx context.Context, loops *loop.Loops, image *os.File, before []loop.Status) error {
	device, err := loops.Attach(ctx, image, none())
	if err != nil {
		return errors.Join(err, syscallfault.Differs("the device beside an error", (*loop.Device)(nil), device))
	}

	found := device.Status
	if len(before) > 0 {
		return errors.Join(syscallfault.Differs("the device", before[0], found), device.Close())
	}

	return errors.Join(syscallfault.Differs("size and block size", []int64{onceBytes, loop.DefaultBlockSize},
		[]int64{found.SizeBytes, int64(found.BlockSize)}), device.Close())
}

var onceOperations = map[string]syscallfault.Operation{
	"attach": ofImage(attachOnce),
	"adopt":  ofImage(attachOnce),
	"find": ofImage(func(_ context.Context, loops *loop.Loops, image *os.File, before []loop.Status) error {
		found, err := loops.Find(image)
		if err != nil {
			return err
		}

		return syscallfault.Differs("the devices", before, found)
	}),
	"status": ofImage(func(_ context.Context, loops *loop.Loops, _ *os.File, before []loop.Status) error {
		status, attached, err := loops.Status(before[0].Number)
		if err != nil {
			return errors.Join(err, syscallfault.Differs("attached beside an error", false, attached))
		}

		return errors.Join(syscallfault.Differs("attached", true, attached), syscallfault.Differs("the status", before[0], status))
	}),
	"resize": ofImage(func(_ context.Context, loops *loop.Loops, _ *os.File, before []loop.Status) error {
		size, err := loops.Resize(before[0].Number)
		if err != nil {
			return errors.Join(err, syscallfault.Differs("the size beside an error", int64(0), size))
		}

		return syscallfault.Differs("the size", int64(2*onceBytes), size)
	}),
	"detach": ofImage(func(ctx context.Context, loops *loop.Loops, _ *os.File, before []loop.Status) error {
		return loops.Detach(ctx, before[0].Number)
	}),
}

// TestEachCallFailsOnce has each system call of an attachment fail once. What the operation answers is
// right or an error, and a failed attach leaves nothing attached.
func TestEachCallFailsOnce(t *testing.T) {
	needRoot(t)

	for name, devices := range map[string]int{"attach": 1, "adopt": 1, "find": 1, "status": 1, "resize": 1, "detach": 0} {
		t.Run(name, func(t *testing.T) {
			found := func(t *testing.T, directory string) []loop.Status {
				t.Helper()

				image, err := os.Open(filepath.Join(directory, "volume.img"))
				require.NoError(t, err)

				defer image.Close()

				found, err := onceLoops().Find(image)
				require.NoError(t, err)

				return found
			}

			c := &syscallfault.Case{
				Operation: name, Mounts: true, Lossy: []string{"*"},
				Prepare: func(t *testing.T, directory string) {
					t.Helper()

					image, err := os.Create(filepath.Join(directory, "volume.img"))
					require.NoError(t, err)
					require.NoError(t, image.Truncate(onceBytes))

					if name != "attach" {
						device, err := onceLoops().Attach(t.Context(), image, none())
						require.NoError(t, err)
						require.NoError(t, device.Close())
					}

					if name == "resize" {
						require.NoError(t, image.Truncate(2*onceBytes))
					}

					require.NoError(t, image.Close())
					t.Cleanup(func() {
						for _, each := range found(t, directory) {
							require.NoError(t, onceLoops().Detach(context.Background(), each.Number))
						}
					})
				},
				Verify: func(t *testing.T, directory string) {
					t.Helper()
					require.Len(t, found(t, directory), devices, "want: the image has its devices")
				},
			}

			if name == "find" {
				// A device whose backing file does not answer is not that of this image, which does.
				c.Except = regexp.MustCompile(`^ioctl\+0x4c05 `)
			}

			if name == "attach" {
				c.Failed = func(t *testing.T, directory string) {
					t.Helper()
					require.Empty(t, found(t, directory), "want: a failed attach leaves nothing attached")
				}
			}

			syscallfault.EachCallFailsOnce(t, c)
		})
	}
}

package loop_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/faults"
)

// TestFindBesideAFailedFilesystem: a loop device whose image can't be asked any more,
// as on a server that is gone, does not prevent finding and attaching others.
func TestFindBesideAFailedFilesystem(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	served := faults.Serve(t)

	lost, err := os.Create(filepath.Join(served.Path, "lost.img"))
	require.NoError(t, err)
	require.NoError(t, lost.Truncate(mebibyte))

	dead := attach(t, loops, lost, loop.AttachOptions{PreferredNumber: -1, AutoClear: true})

	require.NoError(t, lost.Close())
	served.Kill(t)

	_, _, err = loops.Status(dead.Number)
	require.Error(t, err, "Status of a device whose image is on a dead filesystem")

	image := newImage(t, mebibyte)
	device := attach(t, loops, image, none())

	found, err := loops.Find(image)
	require.NoError(t, err)
	require.Len(t, found, 1, "want: the device is found beside the dead filesystem")
	require.Equal(t, device.Number, found[0].Number, "want: the device is the one of the image")

	require.True(t, attachmentOf(t, loops, dead.Number).AutoClear, "sysfs answers for the dead device")

	// It is locked: whose device has it is to be found first.
	again := attach(t, loops, image, none())
	require.Equal(t, device.Number, again.Number, "want: the same device is used again")
}

// TestFindDoesNotQueryOtherImages, which hang, as a query would.
func TestFindDoesNotQueryOtherImages(t *testing.T) {
	needRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: first})
	served := faults.Serve(t)

	hanging, err := os.Create(filepath.Join(served.Path, "hanging.img"))
	require.NoError(t, err)
	require.NoError(t, hanging.Truncate(mebibyte))
	attach(t, loops, hanging, none())
	require.NoError(t, hanging.Close())

	image := newImage(t, mebibyte)
	device := attach(t, loops, image, none())

	served.Inject(t, faults.Fault{Name: "hanging.img", Hang: true})

	done := make(chan []loop.Status, 1)

	go func() {
		found, _ := loops.Find(image)
		done <- found
	}()

	// What hangs does so for twice as long.
	select {
	case found := <-done:
		require.Len(t, found, 1, "want: the device of the image is found")
		require.Equal(t, device.Number, found[0].Number, "want: the device is the one of the image")
	case <-time.After(faults.Longest / 2):
		require.Fail(t, "it waits for the image of another")
	}

	served.Release(t)
}

// TestAttachDoesNotQueryOtherImages where one that hangs has the number that is tried first, as all
// drivers of a machine begin with the same.
func TestAttachDoesNotQueryOtherImages(t *testing.T) {
	needRoot(t)

	options := loop.LoopsOptions{First: firstBusy}
	served := faults.Serve(t)

	hanging, err := os.Create(filepath.Join(served.Path, "hanging.img"))
	require.NoError(t, err)
	require.NoError(t, hanging.Truncate(mebibyte))
	attach(t, loop.NewLoops(options), hanging, loop.AttachOptions{PreferredNumber: -1, AutoClear: true})
	require.NoError(t, hanging.Close())

	loops, image := loop.NewLoops(options), newImage(t, mebibyte)

	served.Inject(t, faults.Fault{Name: "hanging.img", Hang: true})

	done := make(chan *loop.Device, 1)

	go func() {
		device, _ := loops.Attach(t.Context(), image, none())
		done <- device
	}()

	// What hangs does so for twice as long.
	select {
	case device := <-done:
		t.Cleanup(func() { drop(t, loops, device) })
		require.NotNil(t, device, "want: the image is attached")
		require.Equal(t, firstBusy+1, device.Number, "want: the device of the other image is passed over")
	case <-time.After(faults.Longest / 2):
		served.Release(t)
		drop(t, loops, await.Receive(t, done, "Attach to return"))
		require.Fail(t, "it waits for the image of another")
	}

	served.Release(t)
}

// TestFindARenamedImage, whose name has changed since it was attached.
func TestFindARenamedImage(t *testing.T) {
	needRoot(t)

	for name, change := range map[string]func(t *testing.T, image string){
		"renamed": func(t *testing.T, image string) {
			t.Helper()
			require.NoError(t, os.Rename(image, image+".old"))
		},
		"linked, and only the link is left": func(t *testing.T, image string) {
			t.Helper()
			require.NoError(t, os.Link(image, image+".second"))
			require.NoError(t, os.Remove(image))
		},
		"linked": func(t *testing.T, image string) {
			t.Helper()
			require.NoError(t, os.Link(image, image+".second"))
		},
		"deleted": func(t *testing.T, image string) {
			t.Helper()
			require.NoError(t, os.Remove(image))
		},
	} {
		t.Run(name, func(t *testing.T) {
			loops := loop.NewLoops(loop.LoopsOptions{First: first})
			image := newImage(t, mebibyte)
			device := attach(t, loops, image, none())

			change(t, image.Name())

			found, err := loops.Find(image)
			require.NoError(t, err)
			require.Len(t, found, 1, "want: the renamed image is found")
			require.Equal(t, device.Number, found[0].Number, "want: the device is the one of the image")

			if second, err := os.Open(image.Name() + ".second"); err == nil {
				defer second.Close()

				found, err = loops.Find(second)
				require.NoError(t, err)
				require.Len(t, found, 1, "want: the second image is found")
			}
		})
	}
}

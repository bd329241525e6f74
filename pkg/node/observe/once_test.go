package observe_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

// errNoDevice is the answer about a device whose image does not respond.
var errNoDevice = errors.New("the device is not known")

// onceObserver observes an image that is mounted at "staged" and "target" of a directory. It was attached
// as that of the volume "one", and has the name of "two" now.
type onceObserver struct {
	*observe.Observer

	directory string
	// staged is the mount at the staging path.
	staged mount.Point
}

func (o *onceObserver) volume(id string, published ...string) *staged.Volume {
	v := named(id, volume.Parameters{Backing: volume.BackingImage})
	v.StagingPath = filepath.Join(o.directory, "staged")

	for _, each := range published {
		v.Publications = append(v.Publications, staged.Publication{TargetPath: filepath.Join(o.directory, each)})
	}

	return v
}

// onceQuestions are asked while one of their calls fails.
var onceQuestions = map[string]func(o *onceObserver) error{
	"mounted": func(o *onceObserver) error {
		found, err := o.IsMountedAt(o.volume("two"), filepath.Join(o.directory, "target"))

		return answered(true, found, err)
	},
	"covered": func(o *onceObserver) error {
		found, err := o.IsCoveredAt(o.volume("two"), filepath.Join(o.directory, "staged"))

		return answered(true, found, err)
	},
	"image": func(o *onceObserver) error {
		number, _ := o.staged.LoopDevice()
		found, err := o.HasImage(o.volume("one"), number)

		return answered(true, found, err)
	},
	"device": func(o *onceObserver) error {
		_, found, err := o.DeviceAt(o.volume("two"), o.staged)

		return answered(true, found, err)
	},
	"unresponsive": func(o *onceObserver) error {
		if _, found, err := o.DeviceAt(o.volume("two"), o.staged); found || err != nil {
			return syscallfault.Differs("the failure", nil, err)
		}

		return errNoDevice
	},
	"root": func(o *onceObserver) error { return o.open(o.volume("two", "target")) },
	"root of a target": func(o *onceObserver) error {
		v := o.volume("two", "over", "empty", "target")
		v.StagingPath = filepath.Join(o.directory, "missing", "staged")

		return o.open(v)
	},
}

func answered(want, got any, err error) error {
	if err != nil {
		return err
	}

	return syscallfault.Differs("the answer", want, got)
}

// open requires that the root is that of the volume.
func (o *onceObserver) open(v *staged.Volume) error {
	root, point, err := o.OpenRoot(v)
	if root == nil {
		return answered(true, false, err)
	}

	var stat unix.Stat_t

	err = errors.Join(err, unix.Fstat(int(root.Fd()), &stat), root.Close())

	return answered([]uint64{unix.Mkdev(o.staged.Major, o.staged.Minor), unix.Mkdev(o.staged.Major, o.staged.Minor)},
		[]uint64{stat.Dev, unix.Mkdev(point.Major, point.Minor)}, err)
}

func onceOperations() map[string]syscallfault.Operation {
	all := map[string]syscallfault.Operation{}

	for name, ask := range onceQuestions {
		all[name] = func(directory string) (run, end func() error, err error) {
			dirs, err := mount.NewAllowedDirs(directory)
			if err != nil {
				return nil, nil, err
			}

			o := &onceObserver{Observer: observe.New(dirs, loop.NewLoops(loop.LoopsOptions{First: firstLoop})), directory: directory}
			o.staged, _, err = o.MountAt(filepath.Join(directory, "staged"))

			return func() error { return ask(o) }, func() error { return nil }, err
		}
	}

	return all
}

// TestEachCallFailsOnce has each system call of an observation fail once: what is unknown is not absent. Only
// a device whose image does not respond is none.
func TestEachCallFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)
	syscallfault.EachOperationFailsOnce(t, onceOperations(), func(name string) *syscallfault.Case {
		// The sizes of sysfs files, and what another call repeats: the mount of a path.
		except := "^fstat(at)? /(sys|dev)/|^listmount|^(statx|fstatat) "

		switch name {
		case "device":
			except += "|^ioctl.0x4c05 "
		case "unresponsive":
			except = "^[^i]|^ioctl.0x[^4]"
		}

		return &syscallfault.Case{
			Mounts: true, Causes: name != "unresponsive", Reported: []string{""}, Lossy: []string{"*"}, Except: regexp.MustCompile(except),
			Prepare: func(t *testing.T, directory string) {
				t.Helper()

				f := fixtureIn(t, directory)
				f.mount("target", f.mount("staged", f.device.Path, "ext4", 0), "", unix.MS_BIND)
				f.mount("over", "over", "tmpfs", 0)
				require.NoError(t, os.Mkdir(filepath.Join(directory, "empty"), 0o700))
				require.NoError(t, os.Rename(f.image, filepath.Join(directory, observe.ImageName("two"))))
			},
			Verify: func(*testing.T, string) {},
		}
	})
}

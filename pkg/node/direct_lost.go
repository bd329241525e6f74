package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/blockdev"
	"github.com/touchstone-csi/touchstone/pkg/directassign"
	"github.com/touchstone-csi/touchstone/pkg/flock"
	"github.com/touchstone-csi/touchstone/pkg/mount"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

// checkFree returns FAILED_PRECONDITION for an image that is attached: a device that
// a guest had open at its detach goes with the guest, and until then nothing of it
// is read.
func (s *Service) checkFree(use *Use) error {
	place, err := s.poolOf(use)
	if err != nil {
		return err
	}

	image, err := place.OpenImage(use.VolumeID, os.O_RDWR)
	if err != nil {
		return err
	}
	defer image.Close()

	// An attachment has the image locked; this lock goes with the file.
	err = flock.Lock(image, unix.LOCK_EX)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return rpc.Errorf(codes.FailedPrecondition,
			"%w: a virtual machine or a program has its device open still, or another node has it; that has to end first", blockdev.ErrImageLocked)
	}

	if err != nil {
		return fmt.Errorf("lock the image: %w", err)
	}

	return nil
}

// revoke makes a publication lead nowhere whose device is gone: the kernel gives
// its number to another image, and a runtime would give that to the pod.
func (s *Service) revoke(use *Use, publication Publication) error {
	s.config.Log.Warn("a runtime is not told of a device any more that was taken away",
		"volume", use.VolumeID, "target", publication.TargetPath)

	err := s.withdraw(use, publication.TargetPath)

	place, missing := s.places.Find(publication.TargetPath)
	if errors.Is(missing, fs.ErrNotExist) {
		return err
	}

	if missing != nil {
		return errors.Join(err, missing)
	}
	defer place.Close()

	return errors.Join(err, s.clear(use, place))
}

// revokeLost revokes the publications of a volume whose devices have gone.
func (s *Service) revokeLost(ctx context.Context, id string) error {
	return s.onVolume(ctx, id, "revoke", func(context.Context) error {
		use, known := s.uses.get(id)
		if !known {
			return nil
		}

		var failures []error

		for _, publication := range use.Publications {
			if s.shownLost(use, publication) {
				failures = append(failures, s.revoke(use, publication))
			}
		}

		return errors.Join(failures...)
	})
}

// shownLost says whether a runtime is still told of a device that has gone.
func (s *Service) shownLost(use *Use, publication Publication) bool {
	if !use.direct() || !s.deviceLost(use, publication) {
		return false
	}

	_, told, err := s.config.Direct.Root.Get(publication.TargetPath)

	return err != nil || told || s.mountedAt(use, publication.TargetPath)
}

func (s *Service) deviceLost(use *Use, publication Publication) bool {
	number := s.numberOf(use, publication)
	if number == none {
		return true
	}

	_, attached := s.loops.Attachment(number)

	return !attached
}

// reseal shows the assignment anew where somebody has changed what a target path
// shows: a container that may do everything on the machine can.
func (s *Service) reseal(use *Use, given directassign.Assignment) error {
	plugin, err := given.CSIPlugin()
	if err != nil {
		return err
	}

	place, err := s.places.Find(given.TargetPath)
	if err != nil {
		return err
	}
	defer place.Close()

	point, mounted, err := place.Mounted()
	if err != nil || !mounted || !use.showsDirect(point) {
		return err // the volume's health tells of it
	}

	if shown, err := readPlugin(place); point.SuperReadOnly && err == nil && bytes.Equal(shown, plugin) {
		return nil
	}

	s.config.Log.Warn("what a runtime reads at a target path was changed, and is put right",
		"volume", use.VolumeID, "target", given.TargetPath)

	// Over it, and not in its place: killed between the two, the driver would take
	// the volume for one that is not published. Both are unmounted together.
	return show(use, plugin, place)
}

func readPlugin(place *mount.Place) ([]byte, error) {
	const enough = 64 << 10

	root, err := place.OpenDir()
	if err != nil {
		return nil, err
	}
	defer root.Close()

	fd, err := unix.Openat(int(root.Fd()), pluginFile, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", filepath.Join(place.Path(), pluginFile), err)
	}

	file := os.NewFile(uintptr(fd), pluginFile)
	defer file.Close()

	return io.ReadAll(io.LimitReader(file, enough)) //nolint:wrapcheck // only compared
}

// show mounts what the runtime reads at the target path.
func show(use *Use, plugin []byte, place *mount.Place) error {
	tree, err := mount.Files(directSource(use.VolumeID), map[string][]byte{pluginFile: plugin})
	if err != nil {
		return err
	}
	defer tree.Close()

	return tree.Attach(place)
}

// guestCause is what of a guest's failure its user is told. The words of a guest,
// and of a runtime, are in the log only.
func guestCause(failure error) error {
	if errors.Is(failure, errReader) {
		return errReader
	}

	for _, cause := range []error{directassign.ErrUnimplemented, directassign.ErrNoSandbox, directassign.ErrNoAnswer} {
		if errors.Is(failure, cause) {
			return cause
		}
	}

	return failure
}

package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/internal/pool/filecopy"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

var (
	errNoDevice   = errors.New("no loop device of this machine has its image")
	errImageThere = errors.New("its image was not deleted")
)

var rescueVerb = verb{
	name: "rescue", arguments: []argument{oneVolume, {text: "FILE", isPath: true}}, progress: true,
	short: "Copy a volume whose image was deleted to a file, before it is unmounted (Touchstone only)",
	long: `Copy a volume whose image was deleted to a new file, from the loop device that has its data
until it is unmounted. Run it as root on the machine that has mounted the volume. What is
written meanwhile may be in the copy in part: stop the programs that write, and check the copy
before the volume is unmounted. --timeout does not count.`,
	example: `  touchstone ctl volume rescue data /backup/data.img`,
	run: func(ctx context.Context, s *session) error {
		known, err := s.known(ctx, s.args[0])
		if err != nil {
			return err
		}

		known.ID, known.Name = s.args[0], s.names[s.args[0]]

		file, err := filepath.Abs(s.args[1])
		if err != nil {
			return usage(err)
		}

		attached, err := deletedImage(known.ID)
		if err == nil {
			err = s.rescue(ctx, known, attached.Path, file)
		}

		if err != nil {
			return fmt.Errorf("%s: %w", s.names.of(known.ID), err)
		}

		next := mountAgain(known, "mv "+file+" "+attached.BackingPath)
		if !mountedByHand(known) {
			next = "once it is unstaged, mv " + file + " " + attached.BackingPath
		}

		return s.show(nil, answers{"volume_id": known.ID, "device": attached.Path, "file": file},
			[][]string{{fmt.Sprintf("copied %s of %s to %s; check that, then: %s", attached.Path, s.names.of(known.ID), file, next)}}, known.ID)
	},
}

// deletedImage returns the attachment of a volume's deleted image.
func deletedImage(volumeID string) (loop.Attachment, error) {
	all, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
	if err != nil {
		return loop.Attachment{}, err
	}

	return deletedAmong(all, volumeID)
}

// deletedAmong prefers a deleted image: another may have its name by now, and a device of its own.
func deletedAmong(all []loop.Attachment, volumeID string) (loop.Attachment, error) {
	all = slices.DeleteFunc(all, func(each loop.Attachment) bool { return filepath.Base(each.BackingPath) != volumeID+layout.ImageSuffix })
	at := slices.IndexFunc(all, func(each loop.Attachment) bool { return each.BackingDeleted })

	switch {
	case len(all) == 0:
		return loop.Attachment{}, errNoDevice
	case at < 0:
		return loop.Attachment{}, fmt.Errorf("%w: %s; take a snapshot to copy it", errImageThere, all[0].BackingPath)
	default:
		return all[at], nil
	}
}

// rescue copies the device, which may take long, and shows how far it is. After an error there is no file.
func (s *session) rescue(ctx context.Context, known health.VolumeReport, device, file string) error {
	// The filesystem may have shut down: the device has what was written until then.
	if root, err := os.Open(cmp.Or(append(known.Published, known.Staged)...)); err == nil {
		_ = errors.Join(unix.Syncfs(int(root.Fd())), root.Close())
	}

	// The page cache of the device is not that of its filesystem.
	source, err := os.OpenFile(device, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer source.Close()

	size, err := source.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}

	copies, copier := progress.NewRegistry(slog.New(slog.DiscardHandler)), &filecopy.Copier{}
	copier.ReportTo(copies.Start("rescue", known.ID, known.Name, size).Set, size)

	list := func(context.Context) ([]progress.Entry, error) { return copies.List(), nil }

	return s.following(context.WithoutCancel(ctx), list, func(ctx context.Context) error {
		target, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}

		err = errors.Join(writeCopy(ctx, copier, target, source, size), target.Close())
		if err != nil {
			err = errors.Join(err, os.Remove(file))
		}

		return err
	})
}

// writeCopy makes a sparse copy that is on disk, with its name, when it returns.
func writeCopy(ctx context.Context, copier *filecopy.Copier, target, source *os.File, size int64) error {
	err := target.Truncate(size)
	if err != nil {
		return err
	}

	if err := copier.Copy(ctx, target, source, size); err != nil {
		return err
	}

	directory, err := os.Open(filepath.Dir(target.Name()))
	if err != nil {
		return err
	}

	return errors.Join(target.Sync(), directory.Sync(), directory.Close())
}

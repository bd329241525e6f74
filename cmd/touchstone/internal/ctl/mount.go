package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
	"github.com/touchstone-csi/touchstone/pkg/node/persistent"
)

var (
	errNotMounted     = errors.New("it is not mounted")
	errMountedOften   = errors.New("it is mounted at several paths; name one")
	errNotEmpty       = errors.New("the directory is not empty; its files would be hidden")
	errReadOnlyThere  = errors.New("it is mounted read-only, not for writing, which it was; see volume health, then umount and mount it")
	errRawBlock       = errors.New("it is a raw block volume, without a filesystem: leave out --fs and --mount-flag")
	errCreateNeedsFor = errors.New("--size, --limit, --param, --mutable and --topology are for --create")
)

// stagingPrefix begins the name of the directory at which mount stages a volume.
const stagingPrefix = ".touchstone-"

func mountVerb() verb {
	var (
		create, readOnly, persist bool
		what                      createFlags
		isGiven                   func(flag string) bool
	)

	return verb{
		name: "mount", arguments: []argument{oneVolume, newPath}, resolves: true,
		short: "Mount a volume at a path of this machine; with --create, make it if it is missing",
		long: `Mount a volume, by name or id, at a path of this machine, which the driver must allow
(--kubelet-dir, --allow-path). All calls that this takes are made: ControllerPublishVolume,
NodeStageVolume at a hidden directory beside the path, NodePublishVolume. For a volume that is
mounted there they make what is missing, and refuse another access. The mount stays when the
driver restarts; with --persist each start of the driver makes it again, also after a reboot.
"volume umount" ends both. A raw block volume appears as a device.`,
		example: `  touchstone ctl volume mount data /mnt/data --create --size 10Gi --fs xfs --persist
  touchstone ctl volume umount data`,
		flags: func(flags *pflag.FlagSet) {
			flags.BoolVar(&create, "create", false, "make the volume if there is none of that name")
			flags.BoolVar(&readOnly, "readonly", false, "mount it read-only")
			flags.BoolVar(&persist, "persist", false, "mount it again at each start of the driver; =false ends that")
			what.register(flags)
			isGiven = flags.Changed
		},
		run: func(ctx context.Context, s *session) error {
			path, err := filepath.Abs(s.args[1])

			switch {
			case err != nil:
				return usage(err)
			case create:
				err = s.createMissing(ctx, &what)
			case what.isGiven():
				return usage(errCreateNeedsFor)
			}

			if err != nil {
				return err
			}

			if err := s.resolve(ctx, names.Volume, &s.args[0]); err != nil {
				return err
			}

			wanted := &persist
			if !isGiven("persist") {
				wanted = nil
			}

			return s.mount(ctx, &csiclient.Publication{VolumeID: s.args[0], TargetPath: path, ReadOnly: readOnly}, &what.use, wanted)
		},
	}
}

// createMissing makes the volume that the first argument names, unless there is one, and replaces
// the argument by its id. The driver refuses a volume that is not as the flags of a new one say.
func (s *session) createMissing(ctx context.Context, what *createFlags) error {
	listed, _, err := s.objects(ctx, names.Volume)
	if err != nil {
		return err
	}

	name := s.args[0]

	if id, err := find(listed, names.Volume, name); err == nil {
		if s.args[0] = id; !what.isGiven() {
			return nil
		}

		at := slices.IndexFunc(listed, func(o names.Object) bool { return o.ID == id })
		name = listed[at].Name
	}

	request, err := what.request(name)
	if err != nil {
		return err
	}

	answer, err := s.CreateVolume(ctx, request)
	s.args[0] = answer.GetVolume().GetVolumeId()
	s.names.add(s.args[0], name)

	return err
}

// mount makes all calls of a mount, also for a volume that is recorded as mounted: the driver makes
// what is missing, and refuses what differs. If persist is nil, the mount is as persistent as before.
func (s *session) mount(ctx context.Context, claim *csiclient.Publication, use *capabilityFlags, persist *bool) error {
	known, err := s.known(ctx, claim.VolumeID)
	if err != nil {
		return err
	}

	name := cmp.Or(known.Name, claim.VolumeID)
	recorded := slices.Contains(known.Published, claim.TargetPath)
	before := mountIDs(claim.TargetPath, known.Staged)

	// What is in the volume is not hidden by it.
	if !recorded || before[0] == noMount {
		if found, err := os.ReadDir(claim.TargetPath); err == nil && len(found) > 0 {
			return fmt.Errorf("%s: %w", claim.TargetPath, errNotEmpty)
		}
	}

	if claim.Capability, err = use.capabilityFor(known); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}

	// It stays where it is staged. Else it is staged at a hidden directory beside the path.
	claim.StagingPath = cmp.Or(known.Staged, filepath.Join(filepath.Dir(claim.TargetPath), stagingPrefix+claim.VolumeID))

	if err := publishOrUndo(ctx, s.Client, claim, known.Staged != ""); err != nil {
		return explainPath(err, known, claim.TargetPath)
	}

	if err := checkWritable(claim); err != nil {
		return fmt.Errorf("%s at %s: %w", name, claim.TargetPath, err)
	}

	text := name + " is mounted at " + claim.TargetPath
	if claim.ReadOnly {
		text = name + " is mounted read-only at " + claim.TargetPath
	}

	switch {
	case recorded && before == mountIDs(claim.TargetPath, known.Staged):
		text += " already"
	case recorded:
		text += " again: a mount of it was missing"
	}

	starts, err := setPersistent(ctx, s.Client, claim, slices.Contains(known.Persistent, claim.TargetPath), persist)
	if err != nil {
		return err
	}

	return s.showMount(claim, text+starts)
}

// notAgain is said of a mount that is not persistent any more.
const notAgain = ", and no start of the driver mounts it again"

// setPersistent makes a mount persistent or ends that, unless wanted is nil, and returns what is said of it.
func setPersistent(ctx context.Context, co *csiclient.Client, claim *csiclient.Publication, was bool, wanted *bool) (string, error) {
	is := was

	if wanted != nil {
		is = *wanted

		err := persistent.Set(ctx, co.Conn(), persistent.Request{VolumeID: claim.VolumeID, TargetPath: claim.TargetPath, Persistent: is})
		if err != nil {
			return "", fmt.Errorf("it is mounted at %s, but --persist failed: %w", claim.TargetPath, err)
		}
	}

	switch {
	case is:
		return ", and at each start of the driver", nil
	case was:
		return notAgain, nil
	default:
		return "", nil
	}
}

// capabilityFor returns the capability for a volume: what is not given is as the volume is staged.
func (f *capabilityFlags) capabilityFor(known health.VolumeReport) (*csi.VolumeCapability, error) {
	// A volume without a filesystem and without a directory is raw block.
	if !f.block && known.FSType == "" && known.Backing.HasFilesystem() {
		if f.block = true; f.fs != "" || len(f.mountFlags) > 0 {
			return nil, errRawBlock
		}
	}

	if f.mode == 0 && known.AccessMode != "" { // a driver of another kind reports none
		mode, err := parseMode(known.AccessMode)
		if err != nil {
			return nil, err
		}

		f.mode = mode
	}

	return f.capability()
}

// publishOrUndo makes the calls of a mount. If one fails, it undoes those before it, but neither an
// attachment nor a staging that existed before.
func publishOrUndo(ctx context.Context, co *csiclient.Client, claim *csiclient.Publication, staged bool) error {
	caps, attached, err := completePublication(ctx, co, claim)
	if err != nil {
		return err
	}

	steps, err := co.PublishSteps(caps, claim)
	if err != nil {
		return err
	}

	if err := makeParents(claim.TargetPath); err != nil {
		return err
	}

	inverse, _ := co.UnpublishSteps(caps, claim) // its error would be that of PublishSteps

	for made, step := range steps {
		if err = step.Call(ctx, claim); err != nil {
			inverse = inverse[len(inverse)-made:] // what was done last is undone first

			break
		}
	}

	if err != nil && !staged {
		undo := slices.DeleteFunc(inverse, func(step csiclient.Step) bool {
			return step.RPC == "ControllerUnpublishVolume" && slices.Contains(attached, claim.NodeID)
		})
		err = errors.Join(err, takeDown(context.WithoutCancel(ctx), undo, claim))
	}

	if err != nil {
		removeParents(claim.TargetPath)
	}

	return err
}

// noMount is the id of no mount.
const noMount = 0

// mountIDs returns the ids of the mounts at the target and at the staging path: another id is another
// mount.
func mountIDs(target, staging string) (ids [2]uint64) {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC

	for i, path := range []string{target, staging} {
		var stat unix.Statx_t

		err := unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_MNT_ID|unix.STATX_MNT_ID_UNIQUE, &stat)
		if err == nil && stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
			ids[i] = stat.Mnt_id
		}
	}

	return ids
}

// checkWritable returns an error for a volume that is mounted read-only though it was published for
// writing: another program, or the kernel after an error, has changed that since.
func checkWritable(claim *csiclient.Publication) error {
	var stat unix.Statfs_t
	if isForWriting(claim) && unix.Statfs(claim.TargetPath, &stat) == nil && isReadOnly(&stat) {
		return errReadOnlyThere
	}

	return nil
}

func isForWriting(claim *csiclient.Publication) bool {
	mode, mount := claim.Capability.GetAccessMode().GetMode(), claim.Capability.GetMount()

	return mount != nil && !claim.ReadOnly && !slices.Contains(mount.GetMountFlags(), "ro") && !strings.HasSuffix(mode.String(), "READER_ONLY")
}

// isReadOnly reports whether a volume is mounted read-only. One that a virtual machine mounts has a
// tmpfs at its path.
func isReadOnly(stat *unix.Statfs_t) bool {
	return stat.Flags&unix.ST_RDONLY != 0 && stat.Type != unix.TMPFS_MAGIC
}

func (p *printer) showMount(claim *csiclient.Publication, text string) error {
	return p.show(nil, answers{"volume": claim.VolumeID, "path": claim.TargetPath}, [][]string{{text}}, claim.VolumeID)
}

// takeDown makes the calls in order, until one fails, and then removes what mount has made beside
// the path.
func takeDown(ctx context.Context, steps []csiclient.Step, claim *csiclient.Publication) error {
	for _, step := range steps {
		if err := step.Call(ctx, claim); err != nil {
			return err
		}
	}

	if filepath.Base(claim.StagingPath) != stagingPrefix+claim.VolumeID {
		return nil
	}

	if err := os.Remove(claim.StagingPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}

	removeParents(claim.StagingPath)

	return nil
}

func umountVerb() verb {
	var dryRun bool

	return verb{
		name: "umount", aliases: []string{"unmount"}, arguments: []argument{mountTarget}, resolves: true,
		short: "Unmount a volume, and detach it after its last mount",
		long: `Unmount a volume, by its name, id or path: NodeUnpublishVolume, and after its last mount
NodeUnstageVolume and ControllerUnpublishVolume. A volume that is mounted elsewhere, too, stays
attached; name the path then.`,
		flags: func(flags *pflag.FlagSet) {
			flags.BoolVar(&dryRun, "dry-run", false, "only print what would be unmounted, and whether data would be lost")
		},
		run: func(ctx context.Context, s *session) error {
			if !dryRun {
				return s.umount(ctx, s.args[0])
			}

			known, path, err := s.mounted(ctx, s.args[0])
			if err != nil {
				return err
			}

			text := "would unmount " + cmp.Or(known.Name, known.ID) + " from " + path
			if slices.Contains(known.Persistent, path) {
				text += notAgain
			}

			switch _, err := deletedImage(known.ID); {
			case errors.Is(err, errNoDevice), errors.Is(err, errImageThere):
			case err != nil:
				return err
			default:
				text += "; its image was deleted: its data are lost with its last mount, unless " + rescueCommand(*known) + " copies them before"
			}

			return s.show(nil, answers{"would_unmount": known.ID, "path": path}, [][]string{{text}}, known.ID)
		},
	}
}

// umount undoes what mount has done. A volume that is published elsewhere, too, stays staged and
// attached.
func (s *session) umount(ctx context.Context, given string) error {
	known, path, err := s.mounted(ctx, given)
	if err != nil {
		return err
	}

	claim := &csiclient.Publication{VolumeID: known.ID, StagingPath: known.Staged, TargetPath: path}

	caps, _, err := completePublication(ctx, s.Client, claim)
	if err != nil {
		return err
	}

	steps, err := s.UnpublishSteps(caps, claim)
	if err != nil {
		return err
	}

	if path != known.Staged {
		if err := steps[0].Call(ctx, claim); err != nil {
			return err
		}
	}

	if !slices.ContainsFunc(known.Published, func(other string) bool { return other != path }) {
		if err := takeDown(ctx, steps[1:], claim); err != nil {
			return fmt.Errorf("%w; it is unmounted, but not detached: touchstone ctl volume unpublish %s --staging %s --target %s does that",
				err, claim.VolumeID, claim.StagingPath, claim.TargetPath)
		}
	}

	removeParents(path)

	text := cmp.Or(known.Name, known.ID) + " is unmounted from " + path
	if slices.Contains(known.Persistent, path) {
		text += notAgain
	}

	return s.showMount(claim, text)
}

// mounted returns the volume that a name, id or path means, and where it is mounted. For a volume of
// which an interrupted umount has left only the staging, that is the staging path.
func (s *session) mounted(ctx context.Context, given string) (known *health.VolumeReport, path string, err error) {
	report, err := s.ownReport(ctx)
	if err != nil {
		return nil, "", err
	}

	if path, err = filepath.Abs(given); err != nil {
		return nil, "", usage(err)
	}

	for i := range report.Volumes {
		known = &report.Volumes[i]

		switch {
		case slices.Contains(known.Published, path):
			return known, path, nil
		case known.ID != given && known.Name != given:
		case len(known.Published) == 0 && mountedByHand(*known):
			return known, known.Staged, nil
		case len(known.Published) == 0:
			return nil, "", fmt.Errorf("%s: %w%s", s.names.of(known.ID), errNotMounted, attachment(ctx, s.Client, known))
		case len(known.Published) == 1:
			return known, known.Published[0], nil
		default:
			return nil, "", fmt.Errorf("%s: %w: %s", s.names.of(known.ID), errMountedOften, strings.Join(known.Published, ", "))
		}
	}

	return nil, "", fmt.Errorf("%s: %w: no volume has this name or id, or is mounted at this path", given, errNoObject)
}

// madeByMount is an attribute of the directories that mount has made: umount removes them.
const madeByMount = "trusted.touchstone.made"

// makeParents makes the directories above a path that are missing.
func makeParents(path string) error {
	const mode = 0o755

	parent := filepath.Dir(path)

	if _, err := os.Lstat(parent); !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	if err := makeParents(parent); err != nil {
		return err
	}

	err := os.Mkdir(parent, mode)

	switch {
	case errors.Is(err, fs.ErrExist):
		return nil // another program was faster
	case err == nil:
		// On a filesystem without such attributes the directory stays.
		_ = unix.Setxattr(parent, madeByMount, []byte{'1'}, 0)
		// The umask of an administrator would keep other users' programs out.
		err = os.Chmod(parent, mode)
	}

	return err
}

// removeParents removes the directories above a path that mount has made, as far as they are empty.
func removeParents(path string) {
	for parent := filepath.Dir(path); ; parent = filepath.Dir(parent) {
		if _, err := unix.Getxattr(parent, madeByMount, nil); err != nil || os.Remove(parent) != nil {
			return
		}
	}
}

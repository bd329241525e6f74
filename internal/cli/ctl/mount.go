package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
	"github.com/touchstone-csi/touchstone/pkg/health"
)

var (
	errNotMounted     = errors.New("it is not mounted")
	errMountedOften   = errors.New("it is mounted at several paths; name one")
	errNotEmpty       = errors.New("the directory is not empty; its files would be hidden")
	errCreateNeedsFor = errors.New("--size, --limit, --param, --mutable and --topology are for --create")
)

// stagingPrefix begins the name of the directory at which mount stages a volume.
const stagingPrefix = ".touchstone-"

func mountVerb() verb {
	var (
		create, readOnly bool
		what             createFlags
	)

	return verb{
		name: "mount", arguments: []argument{oneVolume, newPath}, resolves: true,
		short: "Mount a volume at a path of this machine; with --create, make it if it is missing",
		long: `Mount a volume, by name or id, at a path of this machine, which the driver must allow
(--kubelet-dir, --allow-path). All calls that this takes are made: ControllerPublishVolume,
NodeStageVolume at a hidden directory beside the path, NodePublishVolume. The mount stays when
the driver restarts; "volume umount" ends it. A raw block volume appears as a device.`,
		example: `  touchstone ctl volume mount data /mnt/data --create --size 10Gi --fs xfs
  touchstone ctl volume umount data`,
		flags: func(flags *pflag.FlagSet) {
			flags.BoolVar(&create, "create", false, "make the volume if there is none of that name")
			flags.BoolVar(&readOnly, "readonly", false, "mount it read-only")
			what.register(flags)
		},
		run: func(ctx context.Context, s *session) error {
			path, err := filepath.Abs(s.args[1])
			if err != nil {
				return usage(err)
			}

			if create {
				err = s.createMissing(ctx, &what)
			} else if what.isGiven() {
				return usage(errCreateNeedsFor)
			}

			if err == nil {
				err = s.resolve(ctx, names.Volume, &s.args[0])
			}

			if err != nil {
				return err
			}

			return s.mount(ctx, &csiclient.Publication{VolumeID: s.args[0], TargetPath: path, ReadOnly: readOnly}, what.use)
		},
	}
}

// createMissing makes the volume that the first argument names, unless there is one, and replaces
// the argument by its id.
func (s *session) createMissing(ctx context.Context, what *createFlags) error {
	err := s.resolve(ctx, names.Volume, &s.args[0])
	if !errors.Is(err, errNoObject) {
		return err
	}

	request, err := what.request(s.args[0])
	if err != nil {
		return err
	}

	answer, err := s.CreateVolume(ctx, request)
	s.args[0] = answer.GetVolume().GetVolumeId()

	return err
}

func (s *session) mount(ctx context.Context, claim *csiclient.Publication, use capabilityFlags) (err error) {
	known := s.healthOf(ctx, claim.VolumeID)
	name := cmp.Or(known.Name, claim.VolumeID)

	if slices.Contains(known.Published, claim.TargetPath) {
		return s.showMount(claim, name+" is mounted at "+claim.TargetPath+" already")
	}

	if found, err := os.ReadDir(claim.TargetPath); err == nil && len(found) > 0 {
		return fmt.Errorf("%s: %w", claim.TargetPath, errNotEmpty)
	}

	// A volume without a filesystem and without a directory is raw block.
	use.block = use.block || known.FSType == "" && known.Backing == "image"

	if claim.Capability, err = use.capability(); err != nil {
		return err
	}

	// It stays where it is staged. Else it is staged at a hidden directory beside the path.
	claim.StagingPath = cmp.Or(known.Staged, filepath.Join(filepath.Dir(claim.TargetPath), stagingPrefix+claim.VolumeID))

	caps, err := s.completePublication(ctx, claim)
	if err != nil {
		return err
	}

	if err := s.publishOrUndo(ctx, claim, caps, known.Staged != ""); err != nil {
		return explainPath(err, claim.TargetPath)
	}

	return s.showMount(claim, name+" is mounted at "+claim.TargetPath)
}

// publishOrUndo makes the calls of a mount. If one fails, it undoes those before it, unless the
// volume was staged, and so attached, before.
func (s *session) publishOrUndo(ctx context.Context, claim *csiclient.Publication, caps csiclient.Capabilities, staged bool) error {
	steps, err := s.PublishSteps(caps, claim)
	if err != nil {
		return err
	}

	inverse, err := s.UnpublishSteps(caps, claim)
	if err != nil {
		return err
	}

	for made, step := range steps {
		err := step.Call(ctx, claim)
		if err != nil && !staged {
			// What was done last is undone first, so it stands at the end of inverse.
			err = errors.Join(err, takeDown(context.WithoutCancel(ctx), inverse[len(inverse)-made:], claim))
		}

		if err != nil {
			return err
		}
	}

	return nil
}

func (s *session) showMount(claim *csiclient.Publication, text string) error {
	return s.show(answers{"volume": claim.VolumeID, "path": claim.TargetPath}, [][]string{{text}}, claim.VolumeID)
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

	return nil
}

// explainPath adds the flag that allows a path which the driver refused.
func explainPath(err error, path string) error {
	if status.Code(err) == codes.InvalidArgument && strings.Contains(err.Error(), "must be beneath") {
		return fmt.Errorf("%w; start the driver with --allow-path %s to mount there", err, filepath.Dir(path))
	}

	return err
}

func umountVerb() verb {
	return verb{
		name: "umount", aliases: []string{"unmount"}, arguments: []argument{mountTarget}, resolves: true,
		short: "Unmount a volume, and detach it after its last mount",
		long: `Unmount a volume, by its name, id or path: NodeUnpublishVolume, and after its last mount
NodeUnstageVolume and ControllerUnpublishVolume. A volume that is mounted elsewhere, too, stays
attached; name the path then.`,
		run: func(ctx context.Context, s *session) error { return s.umount(ctx, s.args[0]) },
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

	caps, err := s.completePublication(ctx, claim)
	if err != nil {
		return err
	}

	if err := s.Unpublish(ctx, claim); err != nil {
		return err
	}

	if !slices.ContainsFunc(known.Published, func(other string) bool { return other != path }) {
		steps, err := s.UnpublishSteps(caps, claim)
		if err != nil {
			return err
		}

		if err := takeDown(ctx, steps[1:], claim); err != nil {
			return err
		}
	}

	return s.showMount(claim, cmp.Or(known.Name, known.ID)+" is unmounted from "+path)
}

// mounted returns the volume that a name, id or path means, and where it is mounted.
func (s *session) mounted(ctx context.Context, given string) (known *health.VolumeReport, path string, err error) {
	report, err := health.NewClient(s.Conn()).Report(ctx)
	if err != nil {
		return nil, "", explainNotTouchstone(err, health.ServiceName, errNoHealth)
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
		case len(known.Published) == 0:
			return nil, "", fmt.Errorf("%s: %w", given, errNotMounted)
		case len(known.Published) == 1:
			return known, known.Published[0], nil
		default:
			return nil, "", fmt.Errorf("%s: %w: %s", given, errMountedOften, strings.Join(known.Published, ", "))
		}
	}

	return nil, "", fmt.Errorf("%s: %w: no volume has this name or id, or is mounted at this path", given, errNoObject)
}

// isGiven reports whether a flag that only a new volume has was given.
func (f *createFlags) isGiven() bool {
	return f.required != 0 || f.limit != 0 || len(f.parameters) > 0 || len(f.mutable) > 0 || len(f.topology) > 0
}

package filesystem_test

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

const (
	onceUUID = "01a20000-0000-7000-8000-000000000001"
	// onceImage is the image of an operation, and golden the name of one that has a filesystem.
	onceImage = "volume.img"
	golden    = "golden-"
	// onceConflict is what xfs_repair says of a superblock that is not what most of its copies are.
	onceConflict = "Primary superblock would have been modified"
)

// onceTools is a Runner for an operation: a check finds nothing, mkfs makes a copy of the golden image,
// and xfs_db the ends of a log.
type onceTools struct{}

func (onceTools) Run(ctx context.Context, command filesystem.Command) (filesystem.Result, error) {
	path := command.Args[len(command.Args)-1]

	switch {
	case strings.HasPrefix(command.Tool, "mkfs."):
		name := golden + strings.TrimPrefix(command.Tool, "mkfs.")

		return filesystem.NewRunner().Run(ctx, filesystem.Command{
			Tool: "cp", Args: []string{"--sparse=always", filepath.Join(filepath.Dir(path), "..", name), path},
		})
	case command.Tool == "xfs_db":
		return filesystem.Result{}, onceFormatLog(path, command.Args[2])
	default:
		return filesystem.Result{}, nil
	}
}

// onceRepair is a Runner of which xfs_repair finds superblocks that differ.
type onceRepair struct{}

func (onceRepair) Run(_ context.Context, command filesystem.Command) (filesystem.Result, error) {
	if command.Tool != "xfs_repair" {
		return filesystem.Result{}, nil
	}

	return filesystem.Result{ExitCode: 1, Output: onceConflict}, nil
}

// onceFormatLog writes the first and the last record of the log of the golden XFS, as the command says.
func onceFormatLog(path, command string) error {
	const log, logLength, record = imageSize/2 + 9*block, 64 * mebibyte, 512

	cycle, err := strconv.ParseUint(strings.TrimPrefix(command, "logformat -c "), 10, 32)
	if err != nil {
		return err
	}

	image, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}

	written := make([]byte, record)
	id := uuid.MustParse(onceUUID)

	binary.BigEndian.PutUint32(written, 0xfeedbabe)
	binary.BigEndian.PutUint32(written[4:], uint32(cycle))
	copy(written[304:], id[:])

	_, first := image.WriteAt(written, log)
	_, last := image.WriteAt(written, log+logLength-record)

	return errors.Join(first, last, image.Close())
}

// ofImage returns an operation of the image in a directory. Its error must be that of the call that was
// made to fail.
func ofImage(name string, run func(fs filesystem.Filesystem, path string) error) syscallfault.Operation {
	return func(directory string) (func() error, func() error, error) {
		fs, err := filesystem.ByName(name, onceTools{})

		return func() error {
			err := run(fs, filepath.Join(directory, onceImage))
			if err == nil || errors.Is(err, unix.EIO) || errors.Is(err, unix.ENOSPC) {
				return err
			}

			return syscallfault.Differs("the report", "that of the failed call", err)
		}, func() error { return nil }, err
	}
}

// ofOpenImage is ofImage of what only reads an image.
func ofOpenImage(name string, run func(fs filesystem.Filesystem, image *os.File) error) syscallfault.Operation {
	return ofImage(name, func(fs filesystem.Filesystem, path string) error {
		image, err := os.Open(path)
		if err != nil {
			return err
		}

		return errors.Join(run(fs, image), image.Close())
	})
}

// answered returns the error of a call, or one that says that its answer is not the expected one. An answer
// beside an error is wrong, too.
func answered[T any](want, got T, err error) error {
	if err != nil {
		var none T

		return errors.Join(err, syscallfault.Differs("the answer beside an error", none, got))
	}

	return syscallfault.Differs("the answer", want, got)
}

// onceMakes is how an operation takes a template and makes a filesystem from it, in an image of zeros.
func onceMakes(templates *filesystem.Templates, fs filesystem.Filesystem, path string) error {
	if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, nil, 0o600), os.Truncate(path, imageSize)); err != nil {
		return err
	}

	return templates.Make(context.Background(), fs, path, filesystem.MakeOptions{})
}

func allOnceOperations() map[string]syscallfault.Operation {
	all := mountedOperations()
	ctx := context.Background()

	for _, name := range filesystem.Names() {
		all["detect "+name] = ofOpenImage(name, func(_ filesystem.Filesystem, image *os.File) error {
			found, err := filesystem.Detect(image)

			return answered(name, found, err)
		})
		all["size of "+name] = ofOpenImage(name, func(fs filesystem.Filesystem, image *os.File) error {
			size, err := fs.SizeBytes(image)

			return answered(imageSize, size, err)
		})
		all["growth of "+name] = ofOpenImage(name, func(_ filesystem.Filesystem, image *os.File) error {
			return filesystem.CheckGrowth(image, imageSize)
		})
		all["UUID of "+name] = ofOpenImage(name, func(fs filesystem.Filesystem, image *os.File) error {
			found, err := filesystem.UUID(image)
			if err == nil {
				var has bool

				has, err = fs.HasUUID(image, found)

				return answered(true, has, err)
			}

			return errors.Join(err, syscallfault.Differs("the UUID beside an error", "", found))
		})
		all["blank "+name] = ofOpenImage(name, func(_ filesystem.Filesystem, image *os.File) error {
			blank, err := filesystem.IsBlank(image)

			return answered(false, blank, err)
		})
		all["check "+name] = ofImage(name, func(fs filesystem.Filesystem, path string) error {
			verdict, err := fs.Check(ctx, path)

			return answered(filesystem.Verdict{State: filesystem.Clean}, verdict, err)
		})
		all["read-only check of "+name] = ofImage(name, func(fs filesystem.Filesystem, path string) error {
			verdict, err := fs.CheckReadOnly(ctx, path, filesystem.ReadOnlyCheckOptions{})

			return answered(filesystem.Verdict{State: filesystem.Clean}, verdict, err)
		})
		all["set UUID of "+name] = ofImage(name, func(fs filesystem.Filesystem, path string) error { return fs.SetUUID(ctx, path, onceUUID) })
		all["make "+name] = ofImage(name, func(fs filesystem.Filesystem, path string) error {
			return fs.Make(ctx, path, filesystem.MakeOptions{})
		})
		var templates filesystem.Templates

		all["write a template of "+name] = func(directory string) (func() error, func() error, error) {
			fs, err := filesystem.ByName(name, onceTools{})
			if err == nil {
				err = onceMakes(&templates, fs, filepath.Join(directory, onceImage))
			}

			run, end, openErr := ofImage(name, func(fs filesystem.Filesystem, path string) error {
				return onceMakes(&templates, fs, path)
			})(directory)

			return run, end, errors.Join(err, openErr)
		}

		if name == filesystem.Btrfs {
			continue // it has many parts, and takes long
		}

		all["take a template of "+name] = ofImage(name, func(fs filesystem.Filesystem, path string) error {
			var templates filesystem.Templates

			return errors.Join(onceMakes(&templates, fs, path), onceMakes(&templates, fs, path))
		})
	}

	all["check the copies of xfs"] = func(directory string) (func() error, func() error, error) {
		fs, err := filesystem.ByName(filesystem.XFS, onceRepair{})

		return func() error {
			verdict, err := fs.Check(ctx, filepath.Join(directory, onceImage))

			return answered(filesystem.Verdict{State: filesystem.Damaged, Detail: onceConflict}, verdict, err)
		}, func() error { return nil }, err
	}
	all["grow ext4"] = ofImage(filesystem.Ext4, func(fs filesystem.Filesystem, path string) error {
		return errors.Join(os.Truncate(path, 2*imageSize), fs.GrowUnmounted(ctx, path))
	})

	return all
}

// TestEachCallFailsOnce has each call fail once that is made for an image. The failure is reported with
// no answer beside, and the operation succeeds when it is repeated.
func TestEachCallFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	within := t.TempDir()

	for _, name := range filesystem.Names() {
		image, err := os.Create(filepath.Join(within, golden+name))
		require.NoError(t, err)
		require.NoError(t, image.Truncate(imageSize))
		require.NoError(t, image.Close())
		require.NoError(t, byName(t, name).Make(t.Context(), image.Name(), filesystem.MakeOptions{}))
	}

	for operation := range allOnceOperations() {
		if _, isMounted := mountedOperations()[operation]; isMounted {
			continue
		}

		name := operation[strings.LastIndex(operation, " ")+1:]
		like := filepath.Join(within, golden+name)

		reported := []string{"openat", "pread64", "pwrite64", "fsync", "fallocate", "lseek"}
		if strings.HasPrefix(operation, "take ") {
			// Without a template mkfs makes the next filesystem, too.
			reported = []string{"pwrite64", "fallocate"}
		}

		t.Run(operation, func(t *testing.T) {
			t.Parallel()
			syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
				Operation: operation, Within: within, Lossy: []string{"*"}, Reported: reported,
				// Not of the tools: what one of them reports is its affair.
				Except: regexp.MustCompile(`^[a-z0-9_.]+: `),
				Prepare: func(t *testing.T, directory string) {
					t.Helper()
					run(t, "cp", "--sparse=always", like, filepath.Join(directory, onceImage))
				},
				Verify: func(t *testing.T, directory string) {
					t.Helper()
					requireWhole(t, byName(t, name), operation, like, filepath.Join(directory, onceImage))
				},
			})
		})
	}
}

// requireWhole requires a filesystem that is as the golden one, but for what the operation has changed.
func requireWhole(t *testing.T, fs filesystem.Filesystem, operation, like, path string) {
	t.Helper()

	want, err := os.Open(like)
	require.NoError(t, err)

	defer want.Close()

	got, err := os.Open(path)
	require.NoError(t, err)

	defer got.Close()

	size, err := fs.SizeBytes(got)
	require.NoError(t, err)
	require.Equal(t, imageSize, size, "the size of the filesystem")

	verb, _, _ := strings.Cut(operation, " ")
	changed := content(t, want).changed(content(t, got))

	switch verb {
	case "set":
		require.Equal(t, onceUUID, uuidOf(t, got), "want: the filesystem has the UUID")

		has, err := fs.HasUUID(got, onceUUID)
		require.NoError(t, err)
		require.True(t, has, "want: all superblocks have the UUID")
	case "take", "write":
		// It has the UUID of the golden one if mkfs has made it.
		require.Equal(t, uuidOf(t, want) == uuidOf(t, got), len(changed) == 0, "want: a filesystem from a template has a UUID of its own")
		require.Less(t, len(changed), 8, "want: the superblocks differ, and nothing else: %v", changed)
	default:
		require.Empty(t, changed, "want: the filesystem has not changed")
	}
}

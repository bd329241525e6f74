package filesystem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/errtext"
)

var errHand = errors.New("the tool did not run")

// TestXFSLogIsChecked: xfs_db ends with 0 whatever happens, so the log that it has made is read.
func TestXFSLogIsChecked(t *testing.T) {
	t.Parallel()

	const (
		cycle  = 7 + 2 // beyond that of the superblock
		groups = handGroups * handGroupBlocks * handBlock
	)

	makesLog := func(path string, first, last []byte) func(Command) (Result, error) {
		return func(command Command) (Result, error) {
			if command.Tool != "xfs_db" {
				return Result{}, nil
			}

			file, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return Result{}, err
			}

			before := make([]byte, handLogBytes)
			_, err = file.ReadAt(before, handLog)
			require.NoError(t, err)
			require.Equal(t, make([]byte, handLogBytes), before, "want: the log is empty when it is formatted")

			_, err = file.WriteAt(first, handLog)
			require.NoError(t, err)
			_, err = file.WriteAt(last, handLog+handLogBytes-512)

			return Result{Output: "what xfs_db says"}, errors.Join(err, file.Close())
		}
	}

	full := handRecord(idB, cycle)
	for name, test := range map[string]struct {
		first, last []byte
		makes       bool
	}{
		"as it should be":      {full, full, true},
		"no record":            {make([]byte, 512), full, false},
		"a wrong magic number": {edited(full, func(record []byte) { record[0] = 0 }, nil), full, false},
		"a former cycle":       {handRecord(idB, cycle-1), full, false},
		"the former UUID":      {handRecord(idA, cycle), full, false},
		"no end":               {full, make([]byte, 512), false},
	} {
		path := handFile(t, groups, map[int64][]byte{0: handXFSImage(idA)})
		run := &scripted{work: makesLog(path, test.first, test.last)}

		err := (&xfs{run: run}).SetUUID(t.Context(), path, idB.String())
		require.Equal(t, [][]string{
			{"xfs_repair", "-n", "-o", "bhash=2048", "-f", "--", path},
			{"xfs_db", "-x", "-c", "logformat -c 9", "--", path},
		}, run.did(), "the tools of an XFS with %s in its log", name)
		require.NotNil(t, run.commands[1].InheritedFile, "want: xfs_db inherits the lock")

		made, readErr := os.ReadFile(path)
		require.NoError(t, readErr)

		has, hasErr := (&xfs{}).HasUUID(bytes.NewReader(made), idB.String())
		require.NoError(t, hasErr)
		require.Equal(t, test.makes, has, "HasUUID of an XFS with %s in its log", name)

		if !test.makes {
			var failed *ToolError
			require.ErrorAs(t, err, &failed, name)
			require.Equal(t, &ToolError{Tool: "xfs_db", Detail: "what xfs_db says"}, failed, name)

			continue
		}

		require.NoError(t, err, name)

		want := handXFSImage(idA)
		for group := range handGroups {
			copy(want[group*handGroupBlocks*handBlock:], edited(handXFS(idB), func(super []byte) {
				copy(super[248:], idA[:])
				binary.BigEndian.PutUint32(super[216:], 1<<2)
			}, sumXFS))
		}

		copy(want[handLog:], full)
		copy(want[handLog+handLogBytes-512:], full)
		require.Equal(t, want, made, "want: only the superblocks and the log change")

		run.commands = nil
		require.NoError(t, (&xfs{run: run}).SetUUID(t.Context(), path, idB.String()))
		require.Empty(t, run.commands, "want: no tool runs if the UUID is set")
	}
}

// TestXFSUUIDNeedsASoundFilesystem: nothing is written before the check, nor where a superblock is
// damaged.
func TestXFSUUIDNeedsASoundFilesystem(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		image  func(image []byte)
		result Result
		err    error
		want   error
	}{
		"damage":                 {func([]byte) {}, Result{ExitCode: 1, Output: "bad block"}, nil, ErrNotClean},
		"a log":                  {func([]byte) {}, Result{ExitCode: 2, Output: "valuable metadata changes in a log"}, nil, ErrNotClean},
		"no tool":                {func([]byte) {}, Result{}, errHand, errHand},
		"a damaged superblock":   {func(image []byte) { image[500]++ }, Result{}, nil, ErrNotClean},
		"another magic number":   {func(image []byte) { image[0] = 'Y' }, Result{}, nil, ErrNoSuperblock},
		"a layout with no sense": {func(image []byte) { clear(image[48:56]) }, Result{}, nil, ErrNoSuperblock},
	} {
		image := handXFSImage(idA)
		test.image(image)

		path := handFile(t, int64(len(image)), map[int64][]byte{0: image})
		run := &scripted{work: func(Command) (Result, error) { return test.result, test.err }}
		require.ErrorIs(t, (&xfs{run: run}).SetUUID(t.Context(), path, idB.String()), test.want, name)

		left, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, image, left, "want: an XFS with %s is not changed", name)
	}
}

// TestXFSUUIDStopsAtADamagedCopy, whose successors are not written.
func TestXFSUUIDStopsAtADamagedCopy(t *testing.T) {
	t.Parallel()

	image := handXFSImage(idA)
	image[handGroupBlocks*handBlock+500]++

	path := handFile(t, int64(len(image)), map[int64][]byte{0: image})
	run := &scripted{}
	run.work = func(command Command) (Result, error) {
		if command.Tool != "xfs_db" {
			return Result{}, nil
		}

		file, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)

		_, err = file.WriteAt(handRecord(idB, 9), handLog)
		require.NoError(t, err)
		_, err = file.WriteAt(handRecord(idB, 9), handLog+handLogBytes-512)

		return Result{}, errors.Join(err, file.Close())
	}

	err := (&xfs{run: run}).SetUUID(t.Context(), path, idB.String())
	require.ErrorIs(t, err, ErrNotClean)
	errtext.Require(t, err, "allocation group 1")

	left, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, image[handGroupBlocks*handBlock:][:512], left[handGroupBlocks*handBlock:][:512], "want: the damaged copy stays")
	require.Equal(t, handXFS(idA), left[2*handGroupBlocks*handBlock:][:512], "want: the last copy is not written before the others")
}

// TestSetUUIDOfAnExt4 compares the superblock afterwards, by what it has of checksums.
func TestSetUUIDOfAnExt4(t *testing.T) {
	t.Parallel()

	flags := func(value uint32) func([]byte) {
		return func(super []byte) { binary.LittleEndian.PutUint32(super[0x64:], value) }
	}

	for name, test := range map[string]struct {
		made []byte
		// want is nil if the tool has to change it.
		want []byte
		err  error
	}{
		"checksums": {handExt4(idA), edited(handExt4(idB), func(super []byte) {
			binary.LittleEndian.PutUint32(super[0x270:], ^castagnoli(idA[:]))
			binary.LittleEndian.PutUint32(super[0x60:], 0x2242)
		}, sumExt4), nil},
		"both kinds of checksums": {edited(handExt4(idA), flags(0x410), sumExt4), edited(handExt4(idB), func(super []byte) {
			flags(0x410)(super)
			binary.LittleEndian.PutUint32(super[0x270:], ^castagnoli(idA[:]))
			binary.LittleEndian.PutUint32(super[0x60:], 0x2242)
		}, sumExt4), nil},
		"no checksums":    {edited(handExt4(idA), flags(0), nil), edited(edited(handExt4(idA), flags(0), nil), func(super []byte) { copy(super[0x68:], idB[:]) }, nil), nil},
		"older checksums": {made: edited(handExt4(idA), flags(0x10), nil)},
		"the UUID":        {handExt4(idB), handExt4(idB), nil},
		"the UUID, and a journal": {
			edited(handExt4(idB), func(super []byte) { super[0x60] |= 4 }, sumExt4),
			edited(handExt4(idB), func(super []byte) { super[0x60] |= 4 }, sumExt4), nil,
		},
		"a journal": {
			edited(handExt4(idA), func(super []byte) { super[0x60] |= 4 }, sumExt4),
			edited(handExt4(idA), func(super []byte) { super[0x60] |= 4 }, sumExt4), ErrNotClean,
		},
		"a wrong checksum": {
			edited(handExt4(idA), func(super []byte) { super[900]++ }, nil),
			edited(handExt4(idA), func(super []byte) { super[900]++ }, nil), ErrNotClean,
		},
	} {
		path := handFile(t, 128<<10, map[int64][]byte{1024: test.made})
		run := &scripted{}
		err := (&ext4{run: run}).SetUUID(t.Context(), path, idB.String())

		if test.want == nil {
			require.Equal(t, [][]string{{"tune2fs", "-U", idB.String(), "--", path}}, run.did(), name)
			requireToolAlone(t, run, err)

			continue
		}

		require.ErrorIs(t, err, test.err, name)
		require.Empty(t, run.commands, "the tools of an ext4 with %s", name)
		require.Equal(t, test.want, readPart(t, path, 1024, 1024), "the superblock of an ext4 with %s", name)
	}
}

// TestSetUUIDOfABtrfs compares the superblock afterwards.
func TestSetUUIDOfABtrfs(t *testing.T) {
	t.Parallel()

	sum := func(super []byte) { binary.LittleEndian.PutUint32(super, castagnoli(super[0x20:])) }
	signed := edited(handBtrfs(idB), func(super []byte) {
		copy(super[0x23b:], idA[:])
		binary.LittleEndian.PutUint64(super[0xbc:], 0x361|1<<10)
	}, sum)

	flag := func(bit int) func([]byte) {
		return func(super []byte) { binary.LittleEndian.PutUint64(super[0x38:], 1<<bit) }
	}
	devices := func(number byte) func([]byte) { return func(super []byte) { super[0x88] = number } }
	none := func([]byte) {}

	for name, test := range map[string]struct {
		change func(super []byte)
		err    error
	}{
		"as made":                  {none, nil},
		"it seeds others":          {flag(32), ErrNotClean},
		"its fsid is changing":     {flag(35), ErrNotClean},
		"its metadata is changing": {flag(36), ErrNotClean},
		"no device":                {devices(0), ErrNotClean},
		"two devices":              {devices(2), ErrNotClean},
	} {
		made := edited(handBtrfs(idA), test.change, sum)
		path := handFile(t, 128<<10, map[int64][]byte{64 << 10: made})
		run := &scripted{}
		require.ErrorIs(t, (&btrfs{run: run}).SetUUID(t.Context(), path, idB.String()), test.err, name)
		require.Empty(t, run.commands, "the tools of a btrfs: %s", name)

		want := made
		if test.err == nil {
			want = signed
		}

		require.Equal(t, want, readPart(t, path, 64<<10, 4096), "the superblock of a btrfs: %s", name)
	}

	// Nothing is asked of one that has the UUID.
	path := handFile(t, 128<<10, map[int64][]byte{64 << 10: edited(handBtrfs(idB), devices(2), sum)})
	require.NoError(t, (&btrfs{}).SetUUID(t.Context(), path, idB.String()))

	path = handFile(t, 128<<10, map[int64][]byte{64 << 10: edited(handBtrfs(idA), func(super []byte) { super[0xc4] = 2 }, sum)})
	run := &scripted{}
	err := (&btrfs{run: run}).SetUUID(t.Context(), path, idB.String())
	require.Equal(t, [][]string{{"btrfstune", "-f", "-M", idB.String(), "--", path}}, run.did(), "the tool of a btrfs with other checksums")
	requireToolAlone(t, run, err)
}

// requireToolAlone requires the report about a tool that has done nothing, and that nothing would have
// ended it.
func requireToolAlone(t *testing.T, run *scripted, err error) {
	t.Helper()

	var failed *ToolError
	require.ErrorAs(t, err, &failed, "want: a tool that has done nothing has failed")
	require.NotNil(t, run.commands[0].InheritedFile, "want: the tool inherits the lock")
	require.True(t, run.commands[0].Uninterruptible, "want: nothing ends the tool")
}

// TestSetUUIDWithATool: its exit code and its error are reported, and what it has changed is read.
func TestSetUUIDWithATool(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		result Result
		err    error
		writes bool
		want   error
		code   int
	}{
		"done":            {writes: true},
		"nothing done":    {want: &ToolError{}},
		"failed":          {result: Result{ExitCode: 3}, want: &ToolError{}, code: 3},
		"failed at last":  {result: Result{ExitCode: 4}, writes: true, want: &ToolError{}, code: 4},
		"could not begin": {err: errHand, want: errHand},
	} {
		path := handFile(t, 128<<10, map[int64][]byte{1024: edited(handExt4(idA), func(super []byte) {
			binary.LittleEndian.PutUint32(super[0x64:], 0x10)
		}, nil)})
		run := &scripted{work: func(Command) (Result, error) {
			if !test.writes {
				return test.result, test.err
			}

			file, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)

			_, err = file.WriteAt(idB[:], 1024+0x68)

			return test.result, errors.Join(test.err, err, file.Close())
		}}

		err := (&ext4{run: run}).SetUUID(t.Context(), path, idB.String())

		if _, isTool := errors.AsType[*ToolError](test.want); isTool {
			var failed *ToolError
			require.ErrorAs(t, err, &failed, name)
			require.Equal(t, test.code, failed.ExitCode, "the exit code of a tool: %s", name)
		} else {
			require.ErrorIs(t, err, test.want, name)
		}
	}
}

func readPart(t *testing.T, path string, offset int64, length int) []byte {
	t.Helper()

	file, err := os.Open(path)
	require.NoError(t, err)

	defer file.Close()

	part := make([]byte, length)
	_, err = file.ReadAt(part, offset)
	require.NoError(t, err)

	return part
}

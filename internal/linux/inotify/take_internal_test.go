package inotify

import (
	"encoding/binary"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/errtext"
)

// event returns a struct inotify_event, with a name that is padded with NULs as the kernel does.
func event(descriptor int32, mask uint32, name string) []byte {
	const padding = 16

	length := 0
	if name != "" {
		length = (len(name)/padding + 1) * padding
	}

	data := make([]byte, unix.SizeofInotifyEvent+length)
	binary.NativeEndian.PutUint32(data, uint32(descriptor))
	binary.NativeEndian.PutUint32(data[4:], mask)
	binary.NativeEndian.PutUint32(data[12:], uint32(length))
	copy(data[unix.SizeofInotifyEvent:], name)

	return data
}

// TestWhatIsReportedOfTheKernelsEvents: 1 is the watch of /a, and 2 that of /gone, which is not listed
// any more.
func TestWhatIsReportedOfTheKernelsEvents(t *testing.T) {
	t.Parallel()

	const unknown = 9

	at := time.Unix(7, 0)
	appeared := Event{Kind: Appeared, Path: "/a/x", At: at}
	changed := Event{Kind: Changed, Path: "/a/x", At: at}
	written := Event{Kind: Written, Path: "/a/x", At: at}
	lost, gone := Event{Kind: Lost, At: at}, Event{Kind: Lost, Path: "/a", At: at}

	for name, test := range map[string]struct {
		events [][]byte
		want   []Event
		err    error
		// left are the watches afterwards.
		left []int32
	}{
		"nothing":            {nil, nil, nil, []int32{1, 2}},
		"created":            {[][]byte{event(1, unix.IN_CREATE, "x")}, []Event{appeared}, nil, []int32{1, 2}},
		"created, directory": {[][]byte{event(1, unix.IN_CREATE|unix.IN_ISDIR, "x")}, []Event{appeared}, nil, []int32{1, 2}},
		"moved in":           {[][]byte{event(1, unix.IN_MOVED_TO, "x")}, []Event{appeared}, nil, []int32{1, 2}},
		"removed":            {[][]byte{event(1, unix.IN_DELETE, "x")}, []Event{changed}, nil, []int32{1, 2}},
		"moved away":         {[][]byte{event(1, unix.IN_MOVED_FROM, "x")}, []Event{changed}, nil, []int32{1, 2}},
		"attributes":         {[][]byte{event(1, unix.IN_ATTRIB, "x")}, []Event{changed}, nil, []int32{1, 2}},
		"written":            {[][]byte{event(1, unix.IN_MODIFY, "x")}, []Event{written}, nil, []int32{1, 2}},
		"other kinds":        {[][]byte{event(1, unix.IN_OPEN, "x"), event(1, unix.IN_CLOSE_WRITE, "x")}, nil, nil, []int32{1, 2}},
		"its own attributes": {[][]byte{event(1, unix.IN_ATTRIB, "")}, nil, nil, []int32{1, 2}},
		"an unknown watch":   {[][]byte{event(unknown, unix.IN_CREATE, "x"), event(unknown, unix.IN_IGNORED, "")}, nil, nil, []int32{1, 2}},
		"too many events":    {[][]byte{event(-1, unix.IN_Q_OVERFLOW, ""), event(1, unix.IN_CREATE, "x")}, []Event{lost, appeared}, nil, []int32{1, 2}},
		"several of one": {
			[][]byte{event(1, unix.IN_MODIFY, "x"), event(1, unix.IN_CREATE, "x"), event(1, unix.IN_MODIFY, "x"), event(1, unix.IN_MODIFY, "a long name of it")},
			[]Event{written, appeared, {Kind: Written, Path: "/a/a long name of it", At: at}},
			nil,
			[]int32{1, 2},
		},
		"removed itself":       {[][]byte{event(1, unix.IN_DELETE_SELF, ""), event(1, unix.IN_CREATE, "x")}, []Event{gone}, ErrGone, []int32{2}},
		"moved itself":         {[][]byte{event(1, unix.IN_MOVE_SELF, "")}, []Event{gone}, ErrGone, []int32{2}},
		"unmounted":            {[][]byte{event(1, unix.IN_UNMOUNT, "")}, []Event{gone}, ErrGone, []int32{2}},
		"not watched any more": {[][]byte{event(1, unix.IN_IGNORED, "")}, []Event{gone}, ErrGone, []int32{2}},
		"not listed": {
			[][]byte{event(2, unix.IN_DELETE_SELF, ""), event(2, unix.IN_CREATE, "x"), event(1, unix.IN_CREATE, "x")},
			[]Event{{Kind: Lost, Path: "/gone", At: at}, appeared},
			nil,
			[]int32{1},
		},
		"a part of an event": {[][]byte{event(1, unix.IN_CREATE, "x"), event(1, unix.IN_CREATE, "")[:unix.SizeofInotifyEvent-1]}, []Event{appeared}, nil, []int32{1, 2}},
	} {
		for _, hasFailed := range []bool{false, true} {
			var (
				got    []Event
				failed []error
			)

			w := &Watcher{directories: map[int32]string{1: "/a", 2: "/gone"}, listed: []string{"/a"}}

			var fail func(error)
			if hasFailed {
				fail = func(err error) { failed = append(failed, err) }
			}

			err := w.take(at, slices.Concat(test.events...), func(event Event) { got = append(got, event) }, fail)
			require.Equal(t, test.want, got, "the events: %s", name)

			switch {
			case test.err == nil:
				require.NoError(t, err, name)
				require.Empty(t, failed, "the failures: %s", name)
			case hasFailed:
				require.NoError(t, err, name)
				require.Len(t, failed, 1, "the failures: %s", name)
				require.ErrorIs(t, failed[0], test.err, name)
				errtext.Require(t, failed[0], "/a was", name)
			default:
				require.ErrorIs(t, err, test.err, name)
				errtext.Require(t, err, "/a was", name)
			}

			left := []int32{}
			for descriptor := range w.directories {
				left = append(left, descriptor)
			}

			slices.Sort(left)
			require.Equal(t, test.left, left, "the watches afterwards: %s", name)
		}
	}
}

// TestDirectoriesThatAreAdded are those that can be watched, one watch for each.
func TestDirectoriesThatAreAdded(t *testing.T) {
	t.Parallel()

	w, err := NewWatcher()
	require.NoError(t, err)

	first, second := t.TempDir(), t.TempDir()
	w.directories = map[int32]string{700: first, 701: "/other"}

	var of Directories

	list := func(paths ...string) error {
		of.List = func() []string { return paths }

		return w.replace(of)
	}

	require.NoError(t, list(first+"/", second))
	require.Equal(t, map[int32]string{1: first, 2: second, 701: "/other"}, w.directories, "the watches")
	require.Equal(t, []string{first, second}, w.listed, "the directories")

	require.ErrorIs(t, list(second, first+"/missing", first), unix.ENOENT)

	var failed []error

	of.Failed = func(err error) { failed = append(failed, err) }
	require.NoError(t, list(second, first+"/missing", first))
	require.Len(t, failed, 1, "want: the missing directory fails")
	errtext.Require(t, failed[0], first+"/missing")
	require.Equal(t, []string{second, first}, w.listed, "the directories")
	require.Equal(t, map[int32]string{1: first, 2: second, 701: "/other"}, w.directories, "the watches")

	w.Remove(second)
	require.Equal(t, []string{first}, w.listed, "want: what is removed is not meant to be there")
	require.NoError(t, w.Add(second))
	require.NoError(t, w.Add(second), "want: a directory is added once")
	require.Equal(t, []string{first, second}, w.listed, "the directories")
	require.Equal(t, map[int32]string{1: first, 3: second, 701: "/other"}, w.directories, "want: the kernel has ended the removed watch")

	require.NoError(t, os.Rename(first, first+"-moved"))
	require.NoError(t, os.Mkdir(first, 0o700))
	require.NoError(t, w.Add(first))
	require.NoError(t, w.Add(first+"-moved"))
	require.Equal(t, map[int32]string{3: second, 4: first, 5: first + "-moved", 701: "/other"}, w.directories,
		"want: the watch of what was there before has ended")

	require.NoError(t, w.Close())
	require.ErrorIs(t, w.Add(first), os.ErrClosed, "want: no watch of a closed watcher")
	w.Remove(first)
}

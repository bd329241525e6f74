package filecopy_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/pool/filecopy"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(onceOperations)
	os.Exit(m.Run())
}

// onceContent has a hole between two parts.
var onceContent = append(append(random(2*mebi), make([]byte, mebi)...), random(5000)...)

// withFiles returns an operation of two files, of which the source has content; one may be on another
// filesystem, which is beneath /dev/shm.
func withFiles(sourceElsewhere, targetElsewhere bool, run func(target, source *os.File) error) syscallfault.Operation {
	return func(directory string) (func() error, func() error, error) {
		other, err := os.MkdirTemp("/dev/shm", "touchstone-copy-")
		if err != nil {
			return nil, nil, err
		}

		in := map[bool]string{false: directory, true: other}
		source, err := os.Create(filepath.Join(in[sourceElsewhere], "source"))
		if err != nil {
			return nil, nil, err
		}

		target, err := os.Create(filepath.Join(in[targetElsewhere], "target"))
		if err == nil {
			_, err = source.Write(onceContent)
		}

		return func() error { return run(target, source) },
			func() error { return errors.Join(source.Close(), target.Close(), os.RemoveAll(other)) },
			errors.Join(err, os.Truncate(target.Name(), int64(len(onceContent))))
	}
}

func copyOnce(target, source *os.File) error {
	var copier filecopy.Copier
	if err := copier.Copy(context.Background(), target, source, int64(len(onceContent))); err != nil {
		return err
	}

	return requireContent(target)
}

func requireContent(file *os.File) error {
	content := make([]byte, len(onceContent))
	if _, err := file.ReadAt(content, 0); err != nil {
		return err
	}

	return syscallfault.Differs("the content is right", true, bytes.Equal(onceContent, content))
}

var onceOperations = map[string]syscallfault.Operation{
	"copy":                         withFiles(false, false, copyOnce),
	"copy to another filesystem":   withFiles(false, true, copyOnce),
	"copy from another filesystem": withFiles(true, false, copyOnce),
	"unshare": withFiles(false, true, func(_, source *os.File) error {
		return errors.Join(filecopy.Unshare(context.Background(), source), requireContent(source))
	}),
	"reflinks": func(directory string) (run, end func() error, err error) {
		return func() error {
			_, err := filecopy.Reflinks(directory)

			return err
		}, func() error { return nil }, nil
	},
}

// TestEachCallFailsOnce has each system call fail once that is made for a copy. It is reported, and the
// copy is right when it is repeated.
func TestEachCallFailsOnce(t *testing.T) {
	t.Parallel()

	syscallfault.EachOperationFailsOnce(t, onceOperations, func(string) *syscallfault.Case {
		return &syscallfault.Case{
			Causes: true, Lossy: []string{"*"}, Reported: []string{""},
			// Without space an empty file decides.
			Unreported: regexp.MustCompile("^pwrite64 inode#"),
			Verify: func(t *testing.T, directory string) {
				t.Helper()

				left, err := filepath.Glob(filepath.Join(directory, "*.*"))
				require.NoError(t, err)
				require.Empty(t, left, "want: no file is left but the two")
			},
		}
	})
}

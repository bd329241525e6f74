package syscallfault

import (
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// ficlone is FICLONE.
const ficlone = 0x40049409

// unsynced are the files and directories of which a power failure may lose a change.
type unsynced map[string]bool

// apply notes what a call does that is about to succeed.
func (u unsynced) apply(call *Call) {
	directory := filepath.Dir(call.Path)

	switch call.Name {
	case "write", "pwrite64", "ftruncate", "truncate", "fallocate", "copy_file_range":
		u[call.Path] = true
	case "ioctl":
		if call.Detail&0xffffffff == ficlone {
			u[call.Path] = true
		}
	case "openat":
		if call.Detail&unix.O_CREAT != 0 && call.Detail&unix.O_TMPFILE != unix.O_TMPFILE && !exists(call.Path) {
			u[directory] = true
		}

		if call.Detail&unix.O_TRUNC != 0 {
			u[call.Path] = true
		}
	case "mkdirat", "mknodat", "symlinkat":
		u[directory] = true
	case "unlinkat":
		if exists(call.Path) {
			u[directory] = true
			delete(u, call.Path)
		}
	case "linkat":
		u[filepath.Dir(call.Target)] = true
	case "renameat", "renameat2":
		u[directory], u[filepath.Dir(call.Target)] = true, true
		lost := u[call.Path]
		delete(u, call.Path)
		delete(u, call.Target)

		if lost {
			u[call.Target] = true
		}
	case "fsync", "fdatasync":
		delete(u, call.Path)
	case "syncfs":
		clear(u)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)

	return err == nil
}

// beneath returns those beneath a directory, relative to it, that match none of the patterns.
func (u unsynced) beneath(directory string, except []string) []string {
	var found []string

	for _, path := range slices.Sorted(maps.Keys(u)) {
		name, err := filepath.Rel(directory, path)
		if err != nil || !filepath.IsLocal(name) {
			continue
		}

		if !slices.ContainsFunc(except, func(pattern string) bool {
			matched, _ := filepath.Match(pattern, name)

			return matched
		}) {
			found = append(found, name)
		}
	}

	return found
}

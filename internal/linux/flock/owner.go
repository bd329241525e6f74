package flock

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// ownerBytes bounds what is read back of a lock file.
const ownerBytes = 8192

// WriteOwner writes this process and its description into a file that it has locked. It ignores errors:
// on a full filesystem a driver starts without its name, because it is needed to delete volumes.
func WriteOwner(file *os.File, owner string) {
	name := fmt.Sprintf("process %d", os.Getpid())
	if owner != "" {
		name += " (" + strings.ReplaceAll(owner, "\n", " ") + ")"
	}

	written, _ := file.WriteAt([]byte(name+"\n"), 0)

	// The rest belongs to a longer name.
	_ = file.Truncate(int64(written))
}

// ReadOwner returns what the process that has locked the file has written, or words for one that has not.
func ReadOwner(file *os.File) string {
	name, err := io.ReadAll(io.NewSectionReader(file, 0, ownerBytes))
	if owner, _, whole := strings.Cut(string(name), "\n"); err == nil && whole {
		return owner
	}

	return "a process that has not named itself"
}

package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// The mark is one line in a file of its own: the number of a change that is durable. It is written
// after each fdatasync of the journal, and synced only at a clean end. So it survives a kill with
// the number of the last acknowledged change, and a power failure with an older one. A journal that
// ends before it is damaged: newlines in place of the last lines look like a part of the file that
// was never written, and only the mark distinguishes the two.

// markBytes bounds what is read of the mark's file.
const markBytes = 4096

// mark is the file, and the buffer of its line.
type mark struct {
	file File
	line []byte
}

// write records the last durable change. Errors are ignored: an older mark is valid, too.
func (m *mark) write(durable uint64) {
	m.line = appendLine(m.line[:0], `"durable":%d`, durable)
	_, _ = m.file.WriteAt(m.line, 0)
}

// readMark returns 0 without a mark: the file is missing, or a power failure left it empty.
func readMark(files FS, path string) (_ uint64, err error) {
	defer errdefs.Wrapf(&err, "read the mark of the journal")
	file, err := files.OpenFile(path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.NewSectionReader(file, 0, markBytes))
	if err != nil {
		return 0, err
	}
	text, _, whole := bytes.Cut(content, []byte{'\n'})
	var mark struct {
		Durable uint64 `json:"durable"`
	}
	if !whole || checkLine(text) != nil || json.Unmarshal(text, &mark) != nil {
		return 0, nil
	}
	return mark.Durable, nil
}

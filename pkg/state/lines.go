package state

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// bufferBytes is the size of a read or write.
const bufferBytes = 128 << 10

// lineReader reads lines of any length and counts them.
type lineReader struct {
	in *bufio.Reader
	// number is that of the line last read, from 1.
	number int
	// offset is where the next line starts, in bytes.
	offset int64
	long   []byte
}

func readLines(file File) (*lineReader, error) {
	size, err := file.Size()
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}

	return &lineReader{in: bufio.NewReaderSize(io.NewSectionReader(file, 0, size), bufferBytes)}, nil
}

// skipEmpty skips empty lines.
func (r *lineReader) skipEmpty() {
	for {
		// An error is the end, or comes back with the next line.
		_, _ = r.in.Peek(1)
		ahead, _ := r.in.Peek(r.in.Buffered())

		empty := 0
		for empty < len(ahead) && ahead[empty] == '\n' {
			empty++
		}

		if empty == 0 {
			return
		}

		r.number += empty
		r.offset += int64(empty)
		_, _ = r.in.Discard(empty)
	}
}

// next returns a line without its newline, valid until the following call; nil
// at the end. whole is false for a last line that lacks its newline.
func (r *lineReader) next() (line []byte, whole bool, err error) {
	r.long = r.long[:0]

	for {
		part, err := r.in.ReadSlice('\n')
		r.offset += int64(len(part))

		switch {
		case err == nil && len(r.long) == 0:
			r.number++

			return part[:len(part)-1], true, nil
		case err == nil:
			r.number++
			r.long = append(r.long, part[:len(part)-1]...)

			return r.long, true, nil
		case errors.Is(err, bufio.ErrBufferFull):
			r.long = append(r.long, part...)
		case errors.Is(err, io.EOF):
			r.long = append(r.long, part...)
			if len(r.long) == 0 {
				return nil, false, nil
			}

			r.number++

			return r.long, false, nil
		default:
			return nil, false, fmt.Errorf("read state: %w", err)
		}
	}
}

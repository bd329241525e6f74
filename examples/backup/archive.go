package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/google/renameio/v2"
)

// An archive is a file of
//
//	a line of JSON    the header
//	ranges            offset and length, 8 bytes each, big-endian, and the bytes
//	the end           a range of length 0
//	32 bytes          SHA-256 of all before
//
// It gets its name when it is complete, and never changes again.
type archive struct {
	file   *renameio.PendingFile
	digest hash.Hash
	to     io.Writer
	// ranges and bytes are how much was added.
	ranges, bytes int64
}

// archiveMode keeps other people from what is in the volume.
const archiveMode = 0o600

// header says what an archive is of.
type header struct {
	Snapshot string `json:"snapshot"`
	// Base is the snapshot since which the changes are; empty is a full backup.
	Base string `json:"base,omitempty"`
	// Capacity is the volume's, in bytes.
	Capacity int64 `json:"capacity"`
}

var (
	errDamaged = errors.New("the backup is damaged or incomplete")
	errChain   = errors.New("the backups do not follow each other")
)

func createArchive(path string, about header) (*archive, error) {
	file, err := renameio.NewPendingFile(path, renameio.WithPermissions(archiveMode))
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", path, err)
	}

	a := &archive{file: file, digest: sha256.New()}
	a.to = io.MultiWriter(file, a.digest)

	if err := json.NewEncoder(a.to).Encode(about); err != nil {
		return nil, errors.Join(fmt.Errorf("write %s: %w", path, err), file.Cleanup())
	}

	return a, nil
}

// add copies a range of the device.
func (a *archive) add(device io.ReaderAt, offset, length int64) error {
	err := binary.Write(a.to, binary.BigEndian, [2]int64{offset, length})
	if err == nil {
		_, err = io.CopyN(a.to, io.NewSectionReader(device, offset, length), length)
	}

	if err != nil {
		return fmt.Errorf("copy %d bytes at %d: %w", length, offset, err)
	}

	a.ranges++
	a.bytes += length

	return nil
}

// commit makes the file be there, with all its bytes on the disk.
func (a *archive) commit() error {
	err := binary.Write(a.to, binary.BigEndian, [2]int64{})
	if err == nil {
		_, err = a.file.Write(a.digest.Sum(nil))
	}

	if err == nil {
		err = a.file.CloseAtomicallyReplace()
	}

	if err != nil {
		return fmt.Errorf("complete %s: %w", a.file.Name(), err)
	}

	return nil
}

// abort removes what was not committed.
func (a *archive) abort() { _ = a.file.Cleanup() }

// read hands out the ranges of an archive, and then says whether they were what
// has been written. The content of a range must be read or is left out.
func read(path string, visit func(offset, length int64, content io.Reader) error) (header, error) {
	file, err := os.Open(path)
	if err != nil {
		return header{}, err
	}
	defer file.Close()

	about, err := readFrom(bufio.NewReader(file), visit)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errDamaged
	}

	if err != nil {
		return header{}, fmt.Errorf("%s: %w", path, err)
	}

	return about, nil
}

func readFrom(file *bufio.Reader, visit func(offset, length int64, content io.Reader) error) (header, error) {
	digest := sha256.New()
	from := io.TeeReader(file, digest)

	about, err := readHeader(file, digest)
	if err != nil {
		return header{}, err
	}

	for {
		var place [2]int64
		if err := binary.Read(from, binary.BigEndian, &place); err != nil {
			return header{}, err
		}

		offset, length := place[0], place[1]

		switch {
		case length == 0:
			want, err := io.ReadAll(file)
			if err == nil && !bytes.Equal(want, digest.Sum(nil)) {
				err = errDamaged
			}

			return about, err
		case offset < 0 || length < 0 || length > about.Capacity || offset > about.Capacity-length:
			return header{}, errDamaged
		}

		content := &io.LimitedReader{R: from, N: length}

		err := visit(offset, length, content)
		if err == nil {
			_, err = io.Copy(io.Discard, content)
		}

		if err == nil && content.N > 0 {
			err = errDamaged
		}

		if err != nil {
			return header{}, err
		}
	}
}

func readHeader(file *bufio.Reader, digest io.Writer) (about header, err error) {
	line, err := file.ReadBytes('\n')
	if err != nil {
		return header{}, err
	}

	if json.Unmarshal(line, &about) != nil || about.Snapshot == "" || about.Capacity <= 0 {
		return header{}, errDamaged
	}

	_, err = digest.Write(line)

	return about, err
}

// checkChain reads all of the backups, and returns what the last one is of.
func checkChain(paths []string) (last header, err error) {
	for _, path := range paths {
		about, err := read(path, func(int64, int64, io.Reader) error { return nil })
		if err != nil {
			return header{}, err
		}

		if about.Base != last.Snapshot {
			return header{}, fmt.Errorf("%w: %s is of what changed since %q, not since %q", errChain, path, about.Base, last.Snapshot)
		}

		last = about
	}

	return last, nil
}

// apply writes the ranges of one backup where they belong.
func apply(path string, device *os.File) error {
	_, err := read(path, func(offset, _ int64, content io.Reader) error {
		if _, err := io.Copy(io.NewOffsetWriter(device, offset), content); err != nil {
			return fmt.Errorf("write at %d: %w", offset, err)
		}

		return nil
	})

	return err
}

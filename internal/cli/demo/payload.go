package demo

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	payloadBytes = 16 * mebi
	payloadMode  = 0o600
)

var errPayloadChanged = errors.New("the data is not what was written")

// writePayload writes random bytes to the volume, syncs them, and returns their checksum.
func writePayload(path string) (sum string, err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, payloadMode)
	if err != nil {
		return "", fmt.Errorf("open the volume for writing: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()

	hash := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(file, hash), rand.Reader, payloadBytes); err != nil {
		return "", fmt.Errorf("write to the volume: %w", err)
	}
	if err := file.Sync(); err != nil {
		return "", fmt.Errorf("sync the volume: %w", err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// verifyPayload compares the volume's data with a checksum. It drops the page cache first, so
// that the data is read from the volume and not from memory.
func verifyPayload(path, want string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open the volume for reading: %w", err)
	}
	defer func() { _ = file.Close() }()

	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("drop cached pages: %w", err)
	}

	hash := sha256.New()
	if _, err := io.CopyN(hash, file, payloadBytes); err != nil {
		return fmt.Errorf("read from the volume: %w", err)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != want {
		return fmt.Errorf("%w: sha256 %s, wanted %s", errPayloadChanged, shortSum(got), shortSum(want))
	}
	return nil
}

// shortSum returns the digits of a checksum that are printed.
func shortSum(sum string) string {
	const shown = 12
	return sum[:min(shown, len(sum))]
}

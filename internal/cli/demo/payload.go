package demo

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	mebi         = 1 << 20
	payloadBytes = 16 * mebi
	payloadMode  = 0o600
	// shownDigits of a checksum are enough for a person to compare two.
	shownDigits = 12
)

var errPayloadChanged = errors.New("the data is not what was written")

// payloadPath is where a workload keeps its data: a file in a mounted volume,
// the device itself of a raw one.
func payloadPath(target string, block bool) string {
	if block {
		return target
	}

	return filepath.Join(target, "data")
}

// writePayload writes random bytes through to the volume and returns their
// checksum.
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

// readPayload returns the checksum of what is there now. The page cache is
// dropped first, so that the answer is the volume's and not memory's.
func readPayload(path string) (sum string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("open the volume for reading: %w", err)
	}

	defer func() { err = errors.Join(err, file.Close()) }()

	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return "", fmt.Errorf("drop cached pages: %w", err)
	}

	hash := sha256.New()
	if _, err := io.CopyN(hash, file, payloadBytes); err != nil {
		return "", fmt.Errorf("read from the volume: %w", err)
	}

	return hex.EncodeToString(hash.Sum(nil)), nil
}

func verifyPayload(path, want string) error {
	got, err := readPayload(path)
	if err != nil {
		return err
	}

	if got != want {
		return fmt.Errorf("%w: sha256 %s, wanted %s", errPayloadChanged, got[:shownDigits], want[:shownDigits])
	}

	return nil
}

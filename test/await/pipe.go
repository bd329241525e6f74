package await

import (
	"os"
	"testing"
)

// ReadPipe returns what is written to a named pipe until its last writer closes it.
// Opening the pipe waits for the first.
func ReadPipe(tb testing.TB, path string) []byte {
	tb.Helper()

	var (
		content []byte
		err     error
	)

	Return(tb, func() { content, err = os.ReadFile(path) }, "a writer of "+path)

	if err != nil {
		tb.Fatalf("read the pipe: %v", err)
	}

	return content
}

// WritePipe writes to a named pipe. Opening it waits for a reader.
func WritePipe(tb testing.TB, path, text string) {
	tb.Helper()

	var err error

	Return(tb, func() { err = os.WriteFile(path, []byte(text), 0) }, "a reader of "+path)

	if err != nil {
		tb.Fatalf("write to the pipe: %v", err)
	}
}

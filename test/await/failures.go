package await

import (
	"fmt"
	"testing"
)

// Failures records what fails a test instead of failing it, for tests of limits.
type Failures struct {
	testing.TB

	Messages []string
}

// Helper does nothing, since nothing is printed.
func (f *Failures) Helper() {}

// Errorf records the message.
func (f *Failures) Errorf(format string, arguments ...any) {
	f.Messages = append(f.Messages, fmt.Sprintf(format, arguments...))
}

package child

import (
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// failures keeps what a test would have failed with.
type failures struct {
	testing.TB

	said []string
}

func (f *failures) Helper() {}

func (f *failures) Errorf(format string, arguments ...any) {
	f.said = append(f.said, fmt.Sprintf(format, arguments...))
}

const (
	limit = 50 * time.Millisecond
	// forever is no verdict on speed.
	forever = "600"
)

func TestACommandThatDoesNotEndIsKilled(t *testing.T) {
	t.Parallel()

	f := &failures{TB: t}
	output, err := CommandWithin(f, limit, "sleep", forever).CombinedOutput()
	require.ErrorContains(t, err, "killed", "%s", output)
	require.Len(t, f.said, 1)
	require.Contains(t, f.said[0], "waited 50ms for the end of ")
	require.Contains(t, f.said[0], "sleep 600: killed it")
}

func TestAChildThatDoesNotEndIsKilled(t *testing.T) {
	t.Parallel()

	f := &failures{TB: t}
	command := exec.Command("sleep", forever)
	require.NoError(t, Start(command))
	require.ErrorContains(t, waitWithin(f, limit, command), "killed")
	require.Len(t, f.said, 1)
	require.Contains(t, f.said[0], "waited 50ms for the end of ")
	require.Contains(t, f.said[0], "sleep 600: killed it")
}

func TestAChildThatEndsIsNotKilled(t *testing.T) {
	t.Parallel()

	command := Command(t, "true")
	require.NoError(t, Start(command))
	require.NoError(t, Wait(t, command))
}

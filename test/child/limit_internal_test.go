package child

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

const (
	limit = 50 * time.Millisecond
	// forever is no verdict on speed.
	forever = "600"
)

func TestACommandThatDoesNotEndIsKilled(t *testing.T) {
	t.Parallel()

	f := &await.Failures{TB: t}
	output, err := CommandWithin(f, limit, "sleep", forever).CombinedOutput()
	errtext.Require(t, err, "killed", "%s", output)
	require.Len(t, f.Messages, 1, "want: the command that is killed is reported")
	require.Contains(t, f.Messages[0], "waited 50ms for the end of ")
	require.Contains(t, f.Messages[0], "sleep 600: killed it")
}

func TestAChildThatDoesNotEndIsKilled(t *testing.T) {
	t.Parallel()

	f := &await.Failures{TB: t}
	command := exec.Command("sleep", forever)
	require.NoError(t, Start(command))
	errtext.Require(t, waitWithin(f, limit, command), "killed")
	require.Len(t, f.Messages, 1, "want: the child that is killed is reported")
	require.Contains(t, f.Messages[0], "waited 50ms for the end of ")
	require.Contains(t, f.Messages[0], "sleep 600: killed it")
}

func TestAChildThatEndsIsNotKilled(t *testing.T) {
	t.Parallel()

	command := Command(t, "true")
	require.NoError(t, Start(command))
	require.NoError(t, Wait(t, command))
}

package demo

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReport(t *testing.T) {
	t.Parallel()

	var out strings.Builder

	r := newReport(&out)
	r.section("An ext4 volume comes to life")
	r.step("CreateVolume", "name=demo", "…c0ffee", nil, 2345*time.Microsecond)
	r.step("NodeStageVolume", "volume=…c0ffee", "mounted", errors.New("INTERNAL: no"), 2*time.Second)
	r.notes("why")

	lines := strings.Split(out.String(), "\n")
	require.Equal(t, "An ext4 volume comes to life", lines[1])
	require.Regexp(t, `^  1 ✓ CreateVolume {14}name=demo → …c0ffee +2\.3 ms$`, lines[2])
	require.Regexp(t, `^  2 ✗ NodeStageVolume {11}volume=…c0ffee → INTERNAL: no +2\.00 s $`, lines[3])
	require.Len(t, []rune(lines[3]), len([]rune(lines[2])), "durations end in one column")
	require.NotContains(t, out.String(), "\x1b", "no colours but on a terminal")
}

func TestPayloadIsReadFromVolume(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "data")
	sum, err := writePayload(path)
	require.NoError(t, err)
	require.NoError(t, verifyPayload(path, sum))

	_, err = writePayload(path)
	require.NoError(t, err)
	require.ErrorIs(t, verifyPayload(path, sum), errPayloadChanged)
}

package kernellog

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRecordsAreParsed(t *testing.T) {
	t.Parallel()

	record, err := parse("12,400,99,-;a text; with\tparts\n SUBSYSTEM=block\n")
	require.NoError(t, err, "a record of the facility user")
	require.Equal(t, Record{Level: Warning, Text: "a text; with\tparts\n SUBSYSTEM=block"}, record, "level and text of a record")

	_, err = parse("no priority;text\n")
	require.Error(t, err, "a record without a priority")
}

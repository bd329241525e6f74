package metrics_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/metrics"
)

func TestRead(t *testing.T) {
	t.Parallel()

	served := "# HELP a of all\n# TYPE a gauge\na{view=\"node\"} 1\na{view=\"storage\"} 2.5\nab 4\n"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(served)) }))

	defer server.Close()

	values, err := metrics.Read(t.Context(), strings.TrimPrefix(server.URL, "http://"))
	require.NoError(t, err)
	require.Equal(t, metrics.Values{`a{view="node"}`: 1, `a{view="storage"}`: 2.5, "ab": 4}, values, "want: each series as served")

	sum, err := values.Sum("a")
	require.NoError(t, err)
	require.InDelta(t, 3.5, sum, 0, "want: the sum of the series of this metric alone")

	_, err = values.Sum("b")
	require.ErrorIs(t, err, metrics.ErrMissing)
	errtext.Require(t, err, "no such metric: b")

	served = "a one\n"
	_, err = metrics.Read(t.Context(), strings.TrimPrefix(server.URL, "http://"))
	errtext.Require(t, err, `parsing "one"`)
}

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

func TestSamplesAreRead(t *testing.T) {
	t.Parallel()

	served := "# HELP a of all\n# TYPE a gauge\na{view=\"node\"} 1\na{view=\"storage\"} 2.5\nab 4\n"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if served == "" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}

		_, _ = w.Write([]byte(served))
	}))

	defer server.Close()

	address := strings.TrimPrefix(server.URL, "http://")
	values, err := metrics.Read(t.Context(), address)
	require.NoError(t, err)

	for view, want := range map[string]float64{"": 3.5, "node": 1, "storage": 2.5} {
		sum, err := values.Sum("a", view)
		require.NoError(t, err)
		require.InDelta(t, want, sum, 0, "want: the sum of the series of this metric in the view %q", view)
	}

	for name, view := range map[string]string{"b": "", "a": "controller", "ab": "node"} {
		_, err = values.Sum(name, view)
		require.ErrorIs(t, err, metrics.ErrMissing)
		errtext.Require(t, err, "no such metric: "+name)
	}

	served = "a one\n"
	_, err = metrics.Read(t.Context(), address)
	errtext.Require(t, err, `"one"`)

	served = ""
	_, err = metrics.Read(t.Context(), address)
	errtext.Require(t, err, "503")
}

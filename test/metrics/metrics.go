// Package metrics reads the metrics that a driver serves.
package metrics

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// ErrMissing is that of a metric without any series.
var ErrMissing = errors.New("the driver serves no such metric")

// Values are the values of all series, by name and labels as served: `touchstone_pool_bytes{kind="used",pool="a"}`.
type Values map[string]float64

// Read reads the metrics of the driver whose --http-endpoint is address, as host:port.
func Read(ctx context.Context, address string) (Values, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("read the metrics: %w", err)
	}

	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("read the metrics: %w", err)
	}
	defer answer.Body.Close()

	values, lines := Values{}, bufio.NewScanner(answer.Body)

	for lines.Scan() {
		at := strings.LastIndexByte(lines.Text(), ' ')
		if at < 0 || strings.HasPrefix(lines.Text(), "#") {
			continue
		}

		value, err := strconv.ParseFloat(lines.Text()[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("read the metrics: %w", err)
		}

		values[lines.Text()[:at]] = value
	}

	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the metrics: %w", err)
	}

	return values, nil
}

// Sum returns the sum of all series of a metric. The error is ErrMissing if it has none.
func (v Values) Sum(name string) (float64, error) {
	found, sum := false, 0.0

	for series, value := range v {
		if metric, _, _ := strings.Cut(series, "{"); metric == name {
			found = true
			sum += value
		}
	}

	if !found {
		return 0, fmt.Errorf("%w: %s", ErrMissing, name)
	}

	return sum, nil
}

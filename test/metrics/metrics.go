// Package metrics reads the metrics that a driver serves.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/touchstone-csi/touchstone/test/served"
)

// ErrMissing is that of a metric without any series.
var ErrMissing = errors.New("the driver serves no such metric")

// Values are the values of all series. A histogram has them for its _count, its _sum and each _bucket.
type Values model.Vector

// Read reads the metrics of the driver whose --http-endpoint is address, as host:port.
func Read(ctx context.Context, address string) (Values, error) {
	text, err := served.Get(ctx, address, "/metrics")
	if err != nil {
		return nil, err
	}

	parser := expfmt.NewTextParser(model.UTF8Validation)

	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read the metrics: %w", err)
	}

	var values Values

	for _, family := range families {
		samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, family)
		if err != nil {
			return nil, fmt.Errorf("read the metrics: %w", err)
		}

		values = append(values, samples...)
	}

	return values, nil
}

// Sum returns the sum of the series of a metric in a view, or of all its series if that is empty. The error is
// ErrMissing if there are none.
func (v Values) Sum(name, view string) (float64, error) {
	found, sum := false, 0.0

	for _, each := range v {
		if each.Metric[model.MetricNameLabel] == model.LabelValue(name) && (view == "" || each.Metric["view"] == model.LabelValue(view)) {
			found = true
			sum += float64(each.Value)
		}
	}

	if !found {
		return 0, fmt.Errorf("%w: %s", ErrMissing, name)
	}

	return sum, nil
}

package strict

import (
	"log/slog"
	"strings"
)

// LogVerdict logs how many violations there were, and each of them, as the last lines of a log: a job that
// tests a CO shows those.
func (m *Monitor) LogVerdict() {
	found := m.List()
	if len(found) == 0 {
		m.config.Log.Info("verdict on the CO: no call violates the CSI spec")

		return
	}

	for _, each := range found {
		m.config.Log.Warn("the CO has violated the CSI spec", slog.String("violation", each.ID), slog.String("object", each.Object),
			slog.Uint64("count", each.Count), slog.String("detail", each.Detail), slog.String("spec", strings.Join(each.Rows, " ")))
	}

	m.config.Log.Warn("verdict on the CO: it violates the CSI spec", slog.Int("violations", len(found)))
}

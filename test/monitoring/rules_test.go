package monitoring_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const (
	alertsFile    = "../../deploy/monitoring/alerts.yaml"
	dashboardFile = "../../deploy/monitoring/grafana-dashboard.json"
	metricsPage   = "../../docs/metrics.md"
)

type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func alerts(t *testing.T) []alert {
	t.Helper()

	text, err := os.ReadFile(alertsFile)
	require.NoError(t, err)

	var file struct {
		Groups []struct {
			Rules []alert `json:"rules"`
		} `json:"groups"`
	}

	require.NoError(t, yaml.Unmarshal(text, &file))

	var all []alert
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}

	require.NotEmpty(t, all, "want: there are alerts")

	return all
}

// queries are the expressions of the dashboard by their panels.
func queries(t *testing.T) map[string][]string {
	t.Helper()

	text, err := os.ReadFile(dashboardFile)
	require.NoError(t, err)

	var board struct {
		Panels []struct {
			ID      int    `json:"id"`
			Type    string `json:"type"`
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}

	require.NoError(t, json.Unmarshal(text, &board))

	all, ids := map[string][]string{}, map[int]bool{}

	for _, panel := range board.Panels {
		require.False(t, ids[panel.ID], "two panels have the id %d", panel.ID)
		ids[panel.ID] = true

		for _, target := range panel.Targets {
			all[panel.Title] = append(all[panel.Title], target.Expr)
		}

		require.Equal(t, panel.Type != "row", len(all[panel.Title]) > 0, panel.Title)
	}

	require.NotEmpty(t, all, "want: there are queries")

	return all
}

func TestAlertsHaveASeverityAndASummary(t *testing.T) {
	t.Parallel()

	names := map[string]bool{}

	for _, each := range alerts(t) {
		require.True(t, strings.HasPrefix(each.Alert, "Touchstone"), each.Alert)
		require.False(t, names[each.Alert], "there are two of %s", each.Alert)
		require.Contains(t, []string{"warning", "critical"}, each.Labels["severity"], each.Alert)
		require.NotEmpty(t, each.Annotations["summary"], each.Alert)
		require.NotEmpty(t, each.Annotations["description"], each.Alert)

		names[each.Alert] = true
	}
}

// TestQueriesUseExposedMetrics: a mistyped name or value would be an
// alert that never fires, which stays unnoticed.
func TestQueriesUseExposedMetrics(t *testing.T) {
	t.Parallel()

	w := start(t)
	require.Equal(t, "clean", w.check(t).Verdict)

	var exposed series

	// The kernel's events come when they come.
	require.Eventually(t, func() bool {
		exposed = w.scrape(t)

		return len(exposed["touchstone_health_events_total"]) > 0
	}, waitLimit, 10*time.Millisecond, "want: an event is exposed")

	for _, each := range alerts(t) {
		t.Run(each.Alert, func(t *testing.T) { exposed.have(t, each.Expr) })
	}

	for title, expressions := range queries(t) {
		t.Run(title, func(t *testing.T) {
			for _, expression := range expressions {
				exposed.have(t, expression)
			}
		})
	}
}

// have finds the metrics of an expression, and their labels, by what is special
// about their names.
func (s series) have(t *testing.T, expression string) {
	t.Helper()

	selector := regexp.MustCompile(`\b((?:touchstone|csi_plugin|process)_[a-z0-9_]+)(?:\{([^}]*)\})?(?:\[[^]]*\])?`)
	grouping := regexp.MustCompile(`\b(?:by|on|ignoring|without)\s*\(([^)]*)\)`)

	found := selector.FindAllStringSubmatch(expression, -1)
	require.NotEmpty(t, found, expression)

	known := []string{"instance"}

	for _, each := range found {
		require.NotEmpty(t, s[each[1]], "there is no metric %s", each[1])

		for _, labels := range s[each[1]] {
			for label := range labels {
				known = append(known, label)
			}
		}

		s.match(t, each[1], each[2])
	}

	for _, group := range grouping.FindAllStringSubmatch(expression, -1) {
		for label := range strings.SplitSeq(group[1], ",") {
			require.Contains(t, known, strings.TrimSpace(label), expression)
		}
	}

	rest := grouping.ReplaceAllString(selector.ReplaceAllString(expression, ""), "")
	for _, word := range regexp.MustCompile(`[a-z_]{2,}`).FindAllString(rest, -1) {
		require.Contains(t, []string{
			"sum", "rate", "increase", "histogram_quantile", "predict_linear", "topk", "vector", "or", "and",
		}, word, "neither a metric nor a function in %s", expression)
	}
}

func (s series) match(t *testing.T, metric, matchers string) {
	t.Helper()

	for _, matcher := range regexp.MustCompile(`([a-z_]+)(=~|!=|=)"([^"]*)"`).FindAllStringSubmatch(matchers, -1) {
		label, operator, wanted := matcher[1], matcher[2], matcher[3]
		if label == "instance" {
			continue // Prometheus adds it
		}

		values := s.values(metric, label)
		require.NotEmpty(t, values, "%s has no label %s", metric, label)

		if label == "grpc_status_code" {
			continue // those of failures are there once something has failed
		}

		pattern := regexp.QuoteMeta(wanted)
		if operator == "=~" {
			pattern = wanted
		}

		require.True(t, slices.ContainsFunc(values, regexp.MustCompile("^(?:"+pattern+")$").MatchString),
			"no %s has %s%s%q", metric, label, operator, wanted)
	}
}

func TestEveryMetricIsInTheDocumentation(t *testing.T) {
	t.Parallel()

	w := start(t)
	w.check(t)

	text, err := os.ReadFile(metricsPage)
	require.NoError(t, err)

	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^- `(touchstone_[a-z_]+)`").FindAllStringSubmatch(string(text), -1) {
		documented[row[1]] = true
	}

	exposed := map[string]bool{}

	for name := range w.scrape(t) {
		if strings.HasPrefix(name, "touchstone_") {
			exposed[regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")] = true
		}
	}

	// There was no event to count.
	exposed["touchstone_health_events_total"] = true

	require.Equal(t, exposed, documented)

	for _, each := range alerts(t) {
		require.Contains(t, string(text), "- `"+each.Alert+"` ("+each.Labels["severity"]+")")
	}
}

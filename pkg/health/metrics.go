package health

// Metrics are the monitors' Prometheus metrics.
type Metrics struct{}

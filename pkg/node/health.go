package node

import (
	"context"
	"time"

	"github.com/touchstone-csi/touchstone/pkg/health"
)

// DefaultIOErrorHold is how long a volume's last I/O error is a condition of it.
const DefaultIOErrorHold = 10 * time.Minute

// Health is what the node knows of the health of the volumes in use on it.
func (s *Service) Health() *health.Monitor { return s.monitor }

// Reports describe the volumes that the node knows, with their conditions as the
// node sees them, usage and checks.
func (s *Service) Reports() []health.VolumeReport { return nil }

// sick is the evidence that events have brought and that no probe can see again:
// I/O errors by device, and images that somebody else has written.
type sick struct{}

func newSick() *sick { return &sick{} }

func (s *Service) newMonitor() *health.Monitor {
	return health.New(s.config.Health.With(health.Config{
		Name: "node", List: func() []string { return nil }, Probe: s.probe,
		Concern: s.concern, Sources: s.config.Sources, Log: s.config.Log,
	}))
}

func (s *Service) probe(context.Context, string) (health.Observation, error) {
	return health.Observation{}, nil
}

func (s *Service) concern(health.Event) []string { return nil }

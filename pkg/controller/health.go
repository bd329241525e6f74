package controller

import (
	"context"

	"github.com/touchstone-csi/touchstone/pkg/health"
)

// Health is what the controller knows of the health of all volumes.
func (s *Service) Health() *health.Monitor { return s.monitor }

// Reports describe all volumes with their conditions as the controller sees them.
func (s *Service) Reports() []health.VolumeReport { return nil }

func (s *Service) newMonitor() *health.Monitor {
	return health.New(s.config.Health.With(health.Config{
		Name: "controller", List: func() []string { return nil }, Probe: s.probe,
		Concern: s.concern, Sources: s.config.Sources, Log: s.config.Log,
	}))
}

func (s *Service) probe(context.Context, string) (health.Observation, error) {
	return health.Observation{}, nil
}

func (s *Service) concern(health.Event) []string { return nil }

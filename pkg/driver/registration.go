package driver

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/touchstone-csi/touchstone/internal/kubernetes/registration"
)

func (c *Config) checkRegistration() error {
	switch {
	case c.KubeletRegistrationDir == "" && c.KubeletRegistrationEndpoint == "":
		return nil
	case c.KubeletRegistrationDir == "":
		return fmt.Errorf("%w: kubelet-registration-endpoint has no effect without kubelet-registration-dir",
			ErrConfig)
	case !c.serves(ModeNode):
		return fmt.Errorf("%w: kubelet-registration-dir announces a node's service to the kubelet, and mode %s has none: leave it out",
			ErrConfig, c.Mode)
	}

	settings, err := c.registration()
	if err == nil {
		err = settings.Check()
	}

	if err != nil {
		return fmt.Errorf("%w: kubelet-registration-dir: %w", ErrConfig, err)
	}

	return nil
}

func (c *Config) registration() (registration.Config, error) {
	settings := registration.Config{Directory: c.KubeletRegistrationDir, DriverName: c.DriverName, Log: c.Log}

	if c.KubeletRegistrationEndpoint != "" {
		path, err := SocketPath(c.KubeletRegistrationEndpoint)
		settings.Endpoint = path

		return settings, err
	}

	path, err := SocketPath(c.Endpoint)
	if err != nil {
		return settings, err
	}

	if settings.Endpoint, err = filepath.Abs(path); err != nil {
		return settings, fmt.Errorf("where the endpoint is: %w", err)
	}

	return settings, nil
}

// announceToKubelet creates the registration socket, if configured: from then on the
// kubelet may call.
func (r *components) announceToKubelet(ctx context.Context, config *Config) error {
	if config.KubeletRegistrationDir == "" {
		return nil
	}

	settings, err := config.registration()
	if err != nil {
		return err
	}

	registrar, err := registration.Listen(ctx, settings)
	if err != nil {
		return err
	}

	r.registrar.Store(registrar)
	r.closers = append(r.closers, registrar.Close)

	return r.registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "touchstone_kubelet_registered",
		Help: "1 if the kubelet's last notification was that it has registered the driver.",
	}, func() float64 {
		if registrar.Registered() {
			return 1
		}

		return 0
	}))
}

// registered is nil where the driver does not announce itself.
func (r *components) registered() *bool {
	registrar := r.registrar.Load()
	if registrar == nil {
		return nil
	}

	registered := registrar.Registered()

	return &registered
}

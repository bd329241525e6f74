package driver

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/touchstone-csi/touchstone/internal/kubernetes/registration"
)

// completeRegistration fills in what the configuration of the driver says.
func (c *Config) completeRegistration() error {
	r := &c.Registration

	switch {
	case r.Directory == "" && r.Endpoint == "":
		return nil
	case r.Directory == "":
		return fmt.Errorf("%w: kubelet-registration-endpoint has no effect without kubelet-registration-dir",
			ErrConfig)
	case !c.serves(ModeNode):
		return fmt.Errorf("%w: kubelet-registration-dir announces a node's service to the kubelet, and mode %s has none: leave it out",
			ErrConfig, c.Mode)
	}

	r.DriverName, r.Log = c.DriverName, c.Log

	if err := c.completeRegistrationEndpoint(); err != nil {
		return fmt.Errorf("%w: kubelet-registration-dir: %w", ErrConfig, err)
	}

	return nil
}

func (c *Config) completeRegistrationEndpoint() error {
	path, err := SocketPath(cmp.Or(c.Registration.Endpoint, c.Endpoint))
	if err != nil {
		return err
	}

	if c.Registration.Endpoint == "" {
		if path, err = filepath.Abs(path); err != nil {
			return err
		}
	}

	c.Registration.Endpoint = path

	return c.Registration.Check()
}

// announceToKubelet creates the registration socket, if configured: from then on the
// kubelet may call.
func (r *components) announceToKubelet(ctx context.Context, config registration.Config) error {
	if config.Directory == "" {
		return nil
	}

	registrar, err := registration.Listen(ctx, config)
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

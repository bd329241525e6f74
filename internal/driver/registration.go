package driver

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/touchstone-csi/touchstone/internal/kubernetes/registration"
	"github.com/touchstone-csi/touchstone/internal/kubernetes/taint"
)

// completeRegistration fills in what the configuration of the driver says.
func (c *Config) completeRegistration() error {
	r := &c.Registration

	switch {
	case r.Directory == "" && c.StartupTaint != "":
		return fmt.Errorf("%w: startup-taint is removed after the registration: give kubelet-registration-dir, too", ErrConfig)
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
func (r *components) announceToKubelet(ctx context.Context, c *Config) error {
	config := c.Registration
	if config.Directory == "" {
		return nil
	}

	if c.StartupTaint != "" {
		config.Succeeded = r.removeAfterRegistration(ctx, c)
	}

	registrar, err := registration.Listen(ctx, config)
	if err != nil {
		return err
	}

	r.registrar.Store(registrar)
	r.watches, r.closers = append(r.watches, registrar.Run), append(r.closers, registrar.Close)

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

// removeAfterRegistration prepares the removal of the node's startup taint, and returns what starts it. Without
// access to the API server the taint stays, and the driver serves.
func (r *components) removeAfterRegistration(ctx context.Context, c *Config) chan<- struct{} {
	remover, err := taint.New(taint.Config{Node: c.NodeID, Key: c.StartupTaint, RetryPause: taint.DefaultRetryPause, Log: c.Log})
	if err != nil {
		c.Log.ErrorContext(ctx, "the startup taint is not removed", "key", c.StartupTaint, "error", err)

		return nil
	}

	registered := make(chan struct{}, 1)
	r.watches = append(r.watches, func(ctx context.Context) { remover.Run(ctx, registered) })

	return registered
}

// registered is nil where the driver does not announce itself.
func (r *components) registered() *bool {
	registrar := r.registrar.Load()
	if registrar == nil {
		return nil
	}

	return new(registrar.Registered())
}

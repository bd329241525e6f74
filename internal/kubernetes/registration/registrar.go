package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/touchstone-csi/touchstone/internal/socket"
)

// ErrConfig is returned for a directory or an endpoint that cannot work.
var ErrConfig = errors.New("kubelet registration")

const (
	// DefaultRetryPause is, as each pause derived from it, longer than the back-off of
	// kubelets that retry by themselves (half a second up to two minutes): only for
	// others the socket is replaced.
	DefaultRetryPause = 5 * time.Second
	maxRetryPause     = 5 * time.Minute
	// maxRepairPause bounds the pause between attempts to create the socket.
	maxRepairPause = time.Minute
)

// Config configures a Registrar.
type Config struct {
	// Directory is the kubelet's plugin directory, normally
	// /var/lib/kubelet/plugins_registry.
	Directory string
	// DriverName is GetPluginInfo's.
	DriverName string
	// Endpoint is the path of the driver's CSI socket as the kubelet sees it, on
	// the host.
	Endpoint string
	// RetryPause is the time from the kubelet's refusal to a new socket, unless the
	// kubelet tries again meanwhile. It doubles, up to five minutes, until the
	// driver is registered; 0 is DefaultRetryPause.
	RetryPause time.Duration
	// Succeeded, unless nil, is signalled after each registration; its buffer has one signal.
	Succeeded chan<- struct{} `json:"-"`
	Log       *slog.Logger
}

// Check returns an error wrapping ErrConfig for what cannot work.
func (c Config) Check() error {
	if !filepath.IsAbs(c.Directory) {
		return fmt.Errorf("%w: the directory %q is not an absolute path", ErrConfig, c.Directory)
	}

	if !filepath.IsAbs(c.Endpoint) {
		return fmt.Errorf("%w: the kubelet's endpoint %q is not an absolute path", ErrConfig, c.Endpoint)
	}

	if err := errors.Join(socket.CheckPath(c.socketPath()), socket.CheckPath(c.Endpoint)); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}

	info, err := os.Stat(c.Directory)

	switch {
	case err != nil:
		return fmt.Errorf("%w: the plugin directory, which the kubelet creates and a container must mount: %w", ErrConfig, err)
	case !info.IsDir():
		return fmt.Errorf("%w: %s is no directory", ErrConfig, c.Directory)
	}

	return nil
}

func (c Config) socketPath() string { return filepath.Join(c.Directory, c.DriverName+"-reg.sock") }

// Registrar is a driver's announcement.
type Registrar struct {
	config  Config
	server  *grpc.Server
	serving sync.WaitGroup
	// listener is owned by Run once it is called.
	listener   *socket.Listener
	registered atomic.Bool
	// changed requests a check of the socket, answered reports a notification of the
	// kubelet.
	changed, answered chan struct{}
}

// Listen creates and serves the socket: from then on the driver must answer the
// kubelet's NodeGetInfo. Call Run to maintain the socket, and always Close. Errors:
// ErrConfig; *socket.InUseError for a socket that is already served; the kernel's.
func Listen(ctx context.Context, config Config) (*Registrar, error) {
	if err := config.Check(); err != nil {
		return nil, err
	}

	config.RetryPause = cmp.Or(config.RetryPause, DefaultRetryPause)
	r := &Registrar{
		config: config, server: grpc.NewServer(grpc.WaitForHandlers(true)),
		changed: make(chan struct{}, 1), answered: make(chan struct{}, 1),
	}
	registerapi.RegisterRegistrationServer(r.server, &service{registrar: r})

	if err := r.listen(ctx); err != nil {
		r.server.Stop()

		return nil, err
	}

	return r, nil
}

// Registered reports whether the kubelet's last notification on the current socket was
// success.
func (r *Registrar) Registered() bool { return r.registered.Load() }

// Close removes the socket, and the kubelet removes the driver. A second call does
// nothing.
func (r *Registrar) Close() error {
	r.registered.Store(false)

	err := r.listener.Close()

	r.server.Stop()
	r.serving.Wait()

	return err
}

// listen creates and serves a new socket beside the previous one, on which the kubelet
// may still have a call.
func (r *Registrar) listen(ctx context.Context) error {
	listener, err := socket.Listen(ctx, r.config.socketPath(), askName)

	switch {
	case errors.As(err, new(*socket.InUseError)):
		return fmt.Errorf("%w: only one of the two can register with the kubelet; "+
			"beside a node-driver-registrar leave out --kubelet-registration-dir", err)
	case err != nil:
		return fmt.Errorf("registration with the kubelet: %w", err)
	}

	r.listener = listener
	r.serving.Go(func() {
		err := r.server.Serve(listener)
		if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, grpc.ErrServerStopped) {
			r.config.Log.Error("the kubelet's questions are not answered any more", "socket", listener.Path(), "error", err)
		}
	})

	return nil
}

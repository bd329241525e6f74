package registration

import (
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
	// DefaultRetryPause is longer, and so is each that follows from it, than what a
	// kubelet lets pass that tries again by itself (half a second at first, two
	// minutes at last): only for others a new socket is made.
	DefaultRetryPause = 5 * time.Second
	maxRetryPause     = 5 * time.Minute
	// maxRepairPause is for what has to be tried without the kubelet.
	maxRepairPause = time.Minute
)

// Config says who registers where.
type Config struct {
	// Directory is where the kubelet looks for plugins, normally
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
	Log        *slog.Logger
}

// Check returns an error wrapping ErrConfig for what cannot work.
func (c Config) Check() error {
	if !filepath.IsAbs(c.Directory) {
		return fmt.Errorf("%w: the directory %q is not an absolute path", ErrConfig, c.Directory)
	}

	if !filepath.IsAbs(c.Endpoint) {
		return fmt.Errorf("%w: the kubelet is to connect to %q, which is not an absolute path", ErrConfig, c.Endpoint)
	}

	if err := errors.Join(socket.CheckPath(c.socketPath()), socket.CheckPath(c.Endpoint)); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}

	info, err := os.Stat(c.Directory)

	switch {
	case err != nil:
		return fmt.Errorf("%w: the kubelet makes its directory of plugins, and a container has to mount it: %w", ErrConfig, err)
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
	// listener is Run's alone from when it is called.
	listener   *socket.Listener
	registered atomic.Bool
	// changed says that the directory is to be looked at, answered that the
	// kubelet has had its say.
	changed, answered chan struct{}
}

// Listen makes the socket and serves it: from then on the driver has to answer
// the kubelet's NodeGetInfo. Call Run to keep the socket there, and Close in any
// case. Errors: ErrConfig; *socket.InUseError for a socket that is served already;
// or the kernel's.
func Listen(ctx context.Context, config Config) (*Registrar, error) {
	if err := config.Check(); err != nil {
		return nil, err
	}

	if config.RetryPause == 0 {
		config.RetryPause = DefaultRetryPause
	}

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

// Registered says whether the kubelet's last word was that it has registered the
// driver with the socket that is there now.
func (r *Registrar) Registered() bool { return r.registered.Load() }

// Close takes the announcement back: the kubelet forgets the driver. A second call
// does nothing.
func (r *Registrar) Close() error {
	r.registered.Store(false)

	err := r.listener.Close()

	r.server.Stop()
	r.serving.Wait()

	return err
}

// listen makes the socket anew and serves it beside what is left of the one
// before: the kubelet may still be talking there.
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

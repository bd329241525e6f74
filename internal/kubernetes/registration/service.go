package registration

import (
	"context"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// version is the plugin version of all CSI drivers, whatever their version of the spec:
// the kubelet requires major version 1.
const version = "1.0.0"

// service is what the kubelet calls.
type service struct {
	registerapi.UnimplementedRegistrationServer

	registrar *Registrar
}

// GetInfo implements registerapi.RegistrationServer.
func (s *service) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	config := s.registrar.config
	config.Log.DebugContext(ctx, "the kubelet called GetInfo", "driver", config.DriverName, "endpoint", config.Endpoint)

	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: config.DriverName, Endpoint: config.Endpoint, SupportedVersions: []string{version},
	}, nil
}

// NotifyRegistrationStatus implements registerapi.RegistrationServer.
func (s *service) NotifyRegistrationStatus(
	ctx context.Context, status *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	config := s.registrar.config

	if status.GetPluginRegistered() {
		config.Log.InfoContext(ctx, "registered with the kubelet", "driver", config.DriverName, "endpoint", config.Endpoint)
		signal(config.Succeeded)
	} else {
		config.Log.ErrorContext(ctx, "the kubelet could not register the driver; it must reach the driver's socket at this path "+
			"(--kubelet-registration-endpoint)", "driver", config.DriverName, "endpoint", config.Endpoint, "error", status.GetError())
	}

	s.registrar.registered.Store(status.GetPluginRegistered())
	signal(s.registrar.answered)

	return &registerapi.RegistrationStatusResponse{}, nil
}

// signal never blocks: one pending signal suffices.
func signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// askName returns the name of the driver that a registration socket is of, or "".
func askName(ctx context.Context, connection *grpc.ClientConn) string {
	info, err := registerapi.NewRegistrationClient(connection).GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return ""
	}

	return "the registration of " + info.GetName()
}

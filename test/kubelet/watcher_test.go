package kubelet_test

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/touchstone-csi/touchstone/test/kubelet"
)

// TestASlowPluginIsRegistered has the plugin answer each connection late, as on a loaded machine.
func TestASlowPluginIsRegistered(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(directory, "slow-reg.sock"))
	require.NoError(t, err)

	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, plugin{})

	var serving sync.WaitGroup

	serving.Go(func() { _ = server.Serve(slow{listener}) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })

	require.Equal(t, "slow", kubelet.Watch(t, directory, nil).Next(kubelet.Registered).Info.GetName())
}

type plugin struct {
	registerapi.UnimplementedRegistrationServer
}

func (plugin) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Name: "slow"}, nil
}

func (plugin) NotifyRegistrationStatus(context.Context, *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

// slow is a listener whose connections answer late.
type slow struct{ net.Listener }

// Accept implements net.Listener.
func (s slow) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()

	return &slowConn{Conn: conn}, err
}

type slowConn struct {
	net.Conn

	delayed sync.Once
}

// Write implements net.Conn.
func (c *slowConn) Write(data []byte) (int, error) {
	c.delayed.Do(func() { time.Sleep(100 * time.Millisecond) })

	return c.Conn.Write(data)
}

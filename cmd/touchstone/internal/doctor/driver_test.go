package doctor_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/doctor"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/served"
)

// stub is a driver with the answers that a test sets.
type stub struct {
	csi.UnimplementedIdentityServer
	registerapi.UnimplementedRegistrationServer

	name   string
	ready  bool
	probe  error
	report *health.Report
	plugin *registerapi.PluginInfo
}

func (s *stub) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: s.name, VendorVersion: "1"}, nil
}

func (s *stub) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(s.ready)}, s.probe
}

func (s *stub) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return s.plugin, nil
}

// serve serves until the test ends.
func (s *stub) serve(t *testing.T, path string) {
	t.Helper()

	listener, err := net.Listen("unix", path)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(path, 0o600))

	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, s)
	registerapi.RegisterRegistrationServer(server, s)

	if s.report != nil {
		(&health.Service{Report: func(context.Context) (health.Report, error) { return *s.report, nil }}).Register(server)
	}

	ended := make(chan error, 1)

	go func() { ended <- server.Serve(listener) }()

	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, await.Receive(t, ended, "the server to end"))
	})
}

func socketOf(t *testing.T, c doctor.Config) string {
	t.Helper()

	return filepath.Join(filepath.Dir(c.StateDir), "csi.sock")
}

func TestSocketIsChecked(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(t *testing.T, path string)
		verdict doctor.Verdict
		words   []string
	}{
		"none": {func(*testing.T, string) {}, doctor.Problem, []string{"there is no", "csi.sock"}},
		"file": {
			func(t *testing.T, path string) { t.Helper(); require.NoError(t, os.WriteFile(path, nil, 0o600)) },
			doctor.Problem,
			[]string{"no socket"},
		},
		"unserved": {
			func(t *testing.T, path string) { t.Helper(); served.Ended(t, path) },
			doctor.Problem,
			[]string{"no process serves"},
		},
		"deaf": {deaf, doctor.Problem, []string{"does not answer"}},
		"another driver": {
			func(t *testing.T, path string) {
				t.Helper()
				(&stub{name: "other.example.org", ready: true}).serve(t, path)
			},
			doctor.Problem,
			[]string{"other.example.org"},
		},
		"not ready": {
			func(t *testing.T, path string) { t.Helper(); (&stub{name: "csi.touchstone.dev"}).serve(t, path) },
			doctor.Problem,
			[]string{"not ready"},
		},
		"not healthy": {
			func(t *testing.T, path string) {
				t.Helper()
				(&stub{name: "csi.touchstone.dev", probe: status.Error(codes.FailedPrecondition, "the disk is gone")}).serve(t, path)
			}, doctor.Problem, []string{"the disk is gone"},
		},
		"open to all": {
			func(t *testing.T, path string) {
				t.Helper()
				(&stub{name: "csi.touchstone.dev", ready: true}).serve(t, path)
				require.NoError(t, os.Chmod(path, 0o666))
			}, doctor.Warning, []string{"0666"},
		},
		"ready": {
			func(t *testing.T, path string) {
				t.Helper()
				(&stub{name: "csi.touchstone.dev", ready: true}).serve(t, path)
			},
			doctor.OK,
			[]string{"csi.touchstone.dev", "ready"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			c := machine(t)
			if name == "deaf" {
				c.Limit = time.Second / 10
			}

			test.prepare(t, socketOf(t, c))

			for _, endpoint := range []string{"unix://" + socketOf(t, c), "unix:" + socketOf(t, c), socketOf(t, c)} {
				c.Endpoint = endpoint
				finds(t, look(t, c, "socket", ""), test.verdict, test.words...)
			}

			c.WithoutDriver = true
			finds(t, look(t, c, "socket", ""), doctor.Skipped)
		})
	}
}

// deaf listens and does not answer.
func deaf(t *testing.T, path string) {
	t.Helper()

	listener, err := net.Listen("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
}

func TestDriversReportIsChecked(t *testing.T) {
	c := machine(t)
	good := func() *health.Report {
		return &health.Report{
			Driver: c.DriverName, Version: "1", Mode: c.Mode, Node: "n-1",
			Sources: map[string][]health.SourceStatus{"node": {{Name: "mounts", Connected: true}}},
			Storage: []health.StorageReport{
				{Name: "default", Kind: "pool", Path: filepath.Join(c.Pools["default"], "mounted")},
				{Name: "state", Kind: "state", Path: c.StateDir},
			},
			Volumes: []health.VolumeReport{{ID: "v-1"}},
		}
	}
	tells := func(change func(*health.Report)) doctor.Finding {
		t.Helper()

		mine := c
		mine.Endpoint = filepath.Join(t.TempDir(), "csi.sock")
		report := good()
		change(report)

		driver := &stub{name: c.DriverName, ready: true, report: report}
		driver.serve(t, mine.Endpoint)

		return look(t, mine, "driver", "")
	}
	sick := []health.ConditionReport{{Entry: health.NewEntry(health.PoolReadOnly, "pool takes no files")}}

	finds(t, tells(func(*health.Report) {}), doctor.OK, "csi.touchstone.dev 1", "mode all", "n-1", "1 volumes")
	finds(t, tells(func(r *health.Report) { r.Storage[0].Conditions = sick }), doctor.Problem, "default: PoolReadOnly: pool takes no files")
	finds(t, tells(func(r *health.Report) { r.Volumes[0].Conditions = sick }), doctor.Warning, "1 of 1 volumes")
	finds(t, tells(func(r *health.Report) {
		r.Sources["node"][0] = health.SourceStatus{Name: "mounts", Problem: "no procfs"}
	}), doctor.Warning, "mounts (node): no procfs")
	finds(t, tells(func(r *health.Report) { r.Mode = "controller" }), doctor.Warning, "mode controller")
	finds(t, tells(func(r *health.Report) { r.Storage[0].Path = "/srv" }), doctor.Warning, "pool default in /srv")
	finds(t, tells(func(r *health.Report) { r.Storage[1].Path = "/srv" }), doctor.Warning, "its state in /srv")
	finds(t, tells(func(r *health.Report) { r.Storage = r.Storage[1:] }), doctor.Warning, "no pool default")
	finds(t, look(t, c, "driver", ""), doctor.Skipped, "socket")

	(&stub{name: "other.example.org", ready: true}).serve(t, socketOf(t, c))
	finds(t, look(t, c, "driver", ""), doctor.Skipped, "not Touchstone")
}

func TestRegistrationIsChecked(t *testing.T) {
	c := machine(t)
	finds(t, look(t, c, "registration", ""), doctor.Skipped, "no kubelet")

	directory := filepath.Join(c.KubeletDir, "plugins_registry")
	c.RegistrationDir = directory
	finds(t, look(t, c, "registration", ""), doctor.Problem, "plugins_registry")

	require.NoError(t, os.Mkdir(directory, 0o700))
	finds(t, look(t, c, "registration", ""), doctor.Problem, "csi.touchstone.dev-reg.sock")

	c.RegistrationDir = ""
	finds(t, look(t, c, "registration", ""), doctor.Warning, "csi.touchstone.dev-reg.sock")

	path := filepath.Join(directory, "csi.touchstone.dev-reg.sock")
	served.Ended(t, path)
	finds(t, look(t, c, "registration", ""), doctor.Problem, "no process serves")
	require.NoError(t, os.Remove(path))

	plugin := &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: c.DriverName, Endpoint: "/on/the/host/csi.sock"}
	(&stub{plugin: plugin}).serve(t, path)
	finds(t, look(t, c, "registration", ""), doctor.OK, "/on/the/host/csi.sock")

	report := &health.Report{Registered: new(bool)}
	(&stub{report: report}).serve(t, socketOf(t, c))
	finds(t, look(t, c, "registration", ""), doctor.Problem, "has not registered")
	*report.Registered = true
	finds(t, look(t, c, "registration", ""), doctor.OK, "/on/the/host/csi.sock")

	plugin.Name = "other.example.org"
	finds(t, look(t, c, "registration", ""), doctor.Problem, "other.example.org")
}

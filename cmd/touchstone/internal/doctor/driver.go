package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

const startIt = "start the driver, or name its socket with --endpoint; if it does not start, its log says why"

// socketPath also accepts endpoints that gRPC does not.
func (c *Config) socketPath() string {
	path := strings.TrimPrefix(strings.TrimPrefix(c.Endpoint, "unix:"), "//")

	if absolute, err := filepath.Abs(path); err == nil {
		return absolute
	}

	return path
}

func (c *Config) connect() (*csiclient.Client, error) {
	return csiclient.Connect("unix://" + c.socketPath())
}

func checkSocket(ctx context.Context, c *Config, _ string) Finding {
	path := c.socketPath()

	info, err := os.Lstat(path)

	switch {
	case errors.Is(err, fs.ErrNotExist):
		return problem("there is no "+path, startIt)
	case err != nil:
		return problem(err.Error(), permissionCure(err, "correct --endpoint"))
	case info.Mode().Type() != fs.ModeSocket:
		return problem(path+" is no socket", "remove it: the driver can't make its socket there")
	}

	co, err := c.connect()
	if err != nil {
		return problem(err.Error(), startIt)
	}
	defer co.Close()

	if said := c.checkIdentity(ctx, co); said.Verdict != OK {
		return said
	}

	const others = 0o077
	if info.Mode().Perm()&others != 0 {
		return warning(fmt.Sprintf("others than its owner may use %s (mode %#o), and so mount", path, info.Mode().Perm()),
			"chmod 600 "+path+", and see who changed it: the driver makes it so")
	}

	return ok(path + ": " + c.DriverName + " answers, and is ready")
}

// checkIdentity checks the name of the driver on the socket, and whether it is ready.
func (c *Config) checkIdentity(ctx context.Context, co *csiclient.Client) Finding {
	name, err := co.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return connectProblem(c.socketPath(), err)
	}

	if name.GetName() != c.DriverName {
		return problem(c.socketPath()+" is served by "+name.GetName()+", not by "+c.DriverName,
			"name the right socket with --endpoint, or the right driver with --driver-name")
	}

	probed, err := co.Probe(ctx, &csi.ProbeRequest{})

	switch {
	case err != nil:
		return problem("the driver is not healthy: "+err.Error(), "fix what it reports, and see its log")
	// An absent ready means yes (CSI v1.13, Probe).
	case probed.GetReady() != nil && !probed.GetReady().GetValue():
		return problem("the driver is not ready yet", "wait for it; if it stays so, its log says what it waits for")
	default:
		return ok("")
	}
}

// connectProblem distinguishes a socket that this user may not use, one without a server, and one
// whose server hangs.
func connectProblem(path string, err error) Finding {
	if denied := unix.Access(path, unix.W_OK); errors.Is(denied, fs.ErrPermission) {
		return problem("connect to "+path+": "+denied.Error(), permissionCure(denied, ""))
	}

	switch status.Code(err) {
	case codes.Unavailable:
		return problem("no process serves "+path+" any more: "+status.Convert(err).Message(),
			"start the driver, which replaces it; see in the old one's log, and in the kernel's, why it has ended")
	case codes.DeadlineExceeded, codes.Canceled:
		return problem("the server of "+path+" does not answer", "see the driver's log; if it hangs, kill it, and it is restarted")
	default:
		return problem(err.Error(), "see the driver's log")
	}
}

// checkDriver checks the conditions that the running driver reports.
func checkDriver(ctx context.Context, c *Config, _ string) Finding {
	report, err := c.report(ctx)

	switch {
	case status.Code(err) == codes.Unimplemented:
		return skipped("what serves the socket is not Touchstone")
	case err != nil:
		return skipped("no driver answers; see socket")
	}

	if wrong := storageConditions(report); len(wrong) > 0 {
		return problem(strings.Join(wrong, "; "), "fix what it reports; docs/volume-health.md describes each of these conditions")
	}

	if other := c.differingSettings(report); len(other) > 0 {
		return warning("the driver that runs "+strings.Join(other, ", "),
			"give this command the driver's own flags, environment, or --config: it has checked something else")
	}

	unhealthy := 0

	for i := range report.Volumes {
		if len(report.Volumes[i].Conditions) > 0 {
			unhealthy++
		}
	}

	if unhealthy > 0 {
		return warning(fmt.Sprintf("%d of %d volumes are not healthy", unhealthy, len(report.Volumes)), "touchstone ctl volume health --abnormal")
	}

	if deaf := disconnectedSources(report); len(deaf) > 0 {
		return warning("the driver runs without events of the kernel: "+strings.Join(deaf, "; "),
			"see events; until they work, it finds failures only by periodic probes")
	}

	return ok(fmt.Sprintf("%s, mode %s, node %s: its storage and its %d volumes are healthy",
		strings.TrimSpace(report.Driver+" "+report.Version), report.Mode, report.Node, len(report.Volumes)))
}

// report returns the report of the running driver.
func (c *Config) report(ctx context.Context) (*health.Report, error) {
	co, err := c.connect()
	if err != nil {
		return nil, err
	}
	defer co.Close()

	return health.NewClient(co.Conn()).Report(ctx)
}

func storageConditions(report *health.Report) []string {
	var wrong []string

	for _, each := range report.Storage {
		for _, condition := range each.Conditions {
			wrong = append(wrong, fmt.Sprintf("%s: %s: %s", each.Name, condition.Reason, condition.Message))
		}
	}

	return wrong
}

// differingSettings lists the settings in which the running driver differs from the flags.
func (c *Config) differingSettings(report *health.Report) []string {
	var other []string

	if report.Mode != c.Mode {
		other = append(other, "has mode "+report.Mode)
	}

	var known []string

	for _, each := range report.Storage {
		if each.Kind == health.StateSubject {
			if filepath.Clean(each.Path) != filepath.Clean(c.StateDir) {
				other = append(other, "has its state in "+each.Path)
			}

			continue
		}

		known = append(known, each.Name)

		if directory := filepath.Clean(c.Pools[each.Name]); filepath.Clean(each.Path) != directory &&
			filepath.Clean(each.Path) != filepath.Join(directory, layout.EmbeddedMountPoint) {
			other = append(other, "has pool "+each.Name+" in "+each.Path)
		}
	}

	for _, name := range pools(c) {
		if !slices.Contains(known, name) {
			other = append(other, "has no pool "+name)
		}
	}

	return other
}

func disconnectedSources(report *health.Report) []string {
	var deaf []string

	for view, list := range report.Sources {
		for _, source := range list {
			if !source.Connected {
				deaf = append(deaf, fmt.Sprintf("%s (%s): %s", source.Name, view, source.Problem))
			}
		}
	}

	slices.Sort(deaf)

	return deaf
}

// checkRegistration makes the kubelet's call on the registration socket, which has the same
// name for the driver and a node-driver-registrar.
func checkRegistration(ctx context.Context, c *Config, _ string) Finding {
	const cure = "give the driver --kubelet-registration-dir (docs/registration.md), or run a node-driver-registrar beside it"

	directory := c.RegistrationDir
	if directory == "" {
		directory = filepath.Join(c.KubeletDir, "plugins_registry")
	}

	path := filepath.Join(directory, c.DriverName+"-reg.sock")

	_, err := os.Lstat(directory)
	if errors.Is(err, fs.ErrNotExist) && c.RegistrationDir == "" {
		return skipped("no kubelet is here: there is no " + directory)
	}

	if err == nil {
		_, err = os.Lstat(path)
	}

	switch {
	case errors.Is(err, fs.ErrPermission):
		return problem(err.Error(), permissionCure(err, cure))
	case err != nil && c.RegistrationDir == "":
		return warning("nothing registers the driver with the kubelet: "+err.Error(), cure)
	case err != nil:
		return problem("the driver does not register with the kubelet: "+err.Error(),
			"mount the kubelet's plugins_registry into the driver's container; the driver's log says what it waits for")
	}

	info, err := pluginInfo(ctx, path)

	switch {
	case err != nil:
		return connectProblem(path, err)
	case info.GetName() != c.DriverName || info.GetType() != registerapi.CSIPlugin:
		return problem(fmt.Sprintf("%s registers the %s %s", path, info.GetType(), info.GetName()), "remove it, and restart the driver")
	case c.isRegistrationRefused(ctx):
		return problem("the kubelet is offered "+info.GetName()+" at "+info.GetEndpoint()+", and has not registered it",
			"see the driver's log for the kubelet's error; it has to reach the driver's socket at that path "+
				"(--kubelet-registration-endpoint)")
	default:
		return ok("the kubelet is offered " + info.GetName() + " at " + info.GetEndpoint())
	}
}

// isRegistrationRefused reports whether the driver reports that the kubelet did not register
// it. A node-driver-registrar exits in that case.
func (c *Config) isRegistrationRefused(ctx context.Context) bool {
	report, err := c.report(ctx)

	return err == nil && report.Registered != nil && !*report.Registered
}

func pluginInfo(ctx context.Context, path string) (*registerapi.PluginInfo, error) {
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	defer conn.Close()

	return registerapi.NewRegistrationClient(conn).GetInfo(ctx, &registerapi.InfoRequest{})
}

package vm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/child"
)

// nfsNode is a driver in network, mount and hostname namespaces of its own: to the server it is
// a client of its own, with its own lease and locks.
type nfsNode struct {
	*csiclient.Client

	name, address, gateway string
	// root has the node's files; pool is where it mounts the export.
	root, pool string
	// holder keeps the namespaces while no driver runs.
	holder *exec.Cmd
	driver *exec.Cmd
	flags  []string
}

// startNode connects a node to the server, mounts the export and starts the driver.
func (s *nfsServer) startNode(t *testing.T, name, mountOptions string, flags ...string) *nfsNode {
	t.Helper()

	subnet := fmt.Sprintf("10.0.%d.", len(s.clients)+1)
	n := &nfsNode{name: name, address: subnet + "2", gateway: subnet + "1", root: t.TempDir(), flags: flags}
	n.pool = filepath.Join(n.root, "pool")
	require.NoError(t, os.MkdirAll(n.kubelet(), directoryMode))
	require.NoError(t, os.Mkdir(n.pool, directoryMode))

	n.hold(t)
	// Only the server has the disk.
	n.inside(t, "umount", s.export)
	n.connect(t)
	s.clients = append(s.clients, n.address)
	s.admit(t)
	n.inside(t, "mount", "-t", "nfs4", "-o",
		"vers=4.2,proto=tcp,addr="+n.gateway+",clientaddr="+n.address+","+mountOptions, n.gateway+":/", n.pool)
	t.Cleanup(func() { n.leave(t) })
	n.serve(t)

	client, err := csiclient.Connect("unix://"+n.socket(), awaitcall.Options(t)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	n.Client = client
	n.waitReady(t)

	return n
}

// hold starts the process that keeps the node's namespaces. Its end, with that of the driver,
// unmounts the pool.
func (n *nfsNode) hold(t *testing.T) {
	t.Helper()

	n.holder = exec.Command("cat")
	input, err := n.holder.StdinPipe()
	require.NoError(t, err)

	n.holder.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS}
	require.NoError(t, child.Start(n.holder))
	t.Cleanup(func() {
		_ = input.Close()
		_ = child.Wait(t, n.holder) // A test may have killed it.
	})
}

// connect gives the node a network with the server as its only neighbour. The client's identity
// is its hostname. The network ends with the node's namespace.
func (n *nfsNode) connect(t *testing.T) {
	t.Helper()

	n.inside(t, "hostname", n.name)
	run(t, "ip", "link", "add", n.link(), "type", "veth", "peer", "name", "eth0", "netns", n.holderPID())
	run(t, "ip", "address", "add", n.gateway+"/24", "dev", n.link())
	run(t, "ip", "link", "set", n.link(), "up")
	n.inside(t, "ip", "address", "add", n.address+"/24", "dev", "eth0")
	n.inside(t, "ip", "link", "set", "eth0", "up")
}

// cut takes the node's network away; join gives it back.
func (n *nfsNode) cut(t *testing.T) {
	t.Helper()
	run(t, "ip", "link", "set", n.link(), "down")
}

func (n *nfsNode) join(t *testing.T) {
	t.Helper()
	run(t, "ip", "link", "set", n.link(), "up")
}

// serve starts the driver in the node's namespaces; the end of the test stops it.
func (n *nfsNode) serve(t *testing.T) {
	t.Helper()

	n.driver = exec.Command("nsenter", append(n.enter(), append([]string{
		setting(t, "TOUCHSTONE_BINARY"), "serve", "--shared", "--node-id=" + n.name,
		"--endpoint=unix://" + n.socket(), "--state-dir=" + filepath.Join(n.root, "state"),
		"--pool=default=" + n.pool, "--kubelet-dir=" + n.kubelet(), "--http-endpoint=",
	}, n.flags...)...)...)

	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "TOUCHSTONE_") {
			n.driver.Env = append(n.driver.Env, variable)
		}
	}

	log, err := os.OpenFile(n.logPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, fileMode)
	require.NoError(t, err)

	defer log.Close()

	n.driver.Stdout, n.driver.Stderr = log, log
	require.NoError(t, child.Start(n.driver))

	started := n.driver

	t.Cleanup(func() {
		err := started.Process.Signal(unix.SIGTERM)
		if errors.Is(err, os.ErrProcessDone) {
			return
		}

		require.NoError(t, err)
		require.NoError(t, child.Wait(t, started), "the driver of node %s ends on SIGTERM", n.name)
	})
}

func (n *nfsNode) waitReady(t *testing.T) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()

	require.NoError(t, n.WaitReady(ctx))
}

// kill ends the driver with SIGKILL.
func (n *nfsNode) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, n.driver.Process.Kill())
	require.Error(t, child.Wait(t, n.driver), "want: the killed driver ends with an error")
}

// inside runs a tool in the node's namespaces.
func (n *nfsNode) inside(t *testing.T, args ...string) string {
	t.Helper()

	return run(t, "nsenter", append(n.enter(), args...)...)
}

func (n *nfsNode) enter() []string { return []string{"-t", n.holderPID(), "-m", "-n", "-u"} }

func (n *nfsNode) holderPID() string { return strconv.Itoa(n.holder.Process.Pid) }

// sees returns the path of the test for a path of the node's mount namespace.
func (n *nfsNode) sees(path string) string { return "/proc/" + n.holderPID() + "/root" + path }

// leave unmounts the pool, which nothing may use any more. A test that has failed shows the
// driver's log instead.
func (n *nfsNode) leave(t *testing.T) {
	t.Helper()

	if !t.Failed() {
		n.inside(t, "umount", n.pool)

		return
	}

	log, _ := os.ReadFile(n.logPath())
	t.Logf("the log of node %s:\n%s", n.name, log)
}

func (n *nfsNode) link() string    { return "to-" + n.name }
func (n *nfsNode) kubelet() string { return filepath.Join(n.root, "kubelet") }
func (n *nfsNode) logPath() string { return filepath.Join(n.root, "driver.log") }
func (n *nfsNode) socket() string  { return filepath.Join(n.root, "csi.sock") }

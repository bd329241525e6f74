package vm_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	nfsdControl = "/proc/fs/nfsd/"
	// leaseSeconds is the least that the kernel allows.
	leaseSeconds = "10"
	// exportFlags: fsid, no_subtree_check, insecure; writable, synchronous, without root_squash.
	exportFlags = "9218"
	// neverExpires is the expiry of an entry of an export cache, in seconds since 1970.
	neverExpires = "4102444800"
)

// nfsServer is the kernel's NFS server in the first network namespace. It exports a directory
// as the root of its NFSv4 tree. The test fills the caches of exports that rpc.mountd would fill.
type nfsServer struct {
	export  string
	clients []string
}

func startNFSServer(t *testing.T, export string) *nfsServer {
	t.Helper()

	s := &nfsServer{export: export}

	for _, module := range []string{"nfsd", "nfsv4", "veth"} {
		run(t, "modprobe", module)
	}

	run(t, "ip", "link", "set", "lo", "up")
	// Where the server records its clients: only these reclaim locks after a restart.
	require.NoError(t, os.MkdirAll("/var/lib/nfs/v4recovery", directoryMode))

	if _, err := os.Stat(nfsdControl + "threads"); err != nil {
		run(t, "mount", "-t", "nfsd", "nfsd", nfsdControl)
	}

	s.set(t, nfsdControl+"versions", "-3 +4 +4.1 +4.2\n")
	s.set(t, nfsdControl+"nfsv4leasetime", leaseSeconds)
	s.set(t, nfsdControl+"nfsv4gracetime", leaseSeconds)
	t.Cleanup(func() {
		s.stop(t)

		if !t.Failed() {
			s.unmount(t)
			run(t, "mount", setting(t, "TOUCHSTONE_VM_DISK"), s.export)
		}
	})
	s.start(t)
	s.set(t, nfsdControl+"v4_end_grace", "Y")

	return s
}

// start begins the grace period, in which clients reclaim their locks.
func (s *nfsServer) start(t *testing.T) {
	t.Helper()

	s.set(t, nfsdControl+"portlist", "tcp 2049")
	s.admit(t)
	s.set(t, nfsdControl+"threads", "4")
}

// stop ends the server, which forgets opens and locks; clients wait for its return.
func (s *nfsServer) stop(t *testing.T) {
	t.Helper()
	s.set(t, nfsdControl+"threads", "0")
}

// unmount unmounts the disk that the server, which is stopped, has exported. The kernel drops the
// entries of its caches, which use the disk, a moment after the server has stopped.
func (s *nfsServer) unmount(t *testing.T) {
	t.Helper()

	require.Eventually(t, func() bool { return unix.Unmount(s.export, 0) == nil }, waitLimit, 50*time.Millisecond,
		"something still uses the exported disk")
}

// admit lets the clients in: the kernel discards these entries when the server stops.
func (s *nfsServer) admit(t *testing.T) {
	t.Helper()

	// The first address makes the group of clients that an export names.
	for _, address := range append([]string{"127.0.0.1"}, s.clients...) {
		s.set(t, "/proc/net/rpc/auth.unix.ip/channel", "nfsd "+address+" "+neverExpires+" nodes\n")
	}

	s.set(t, "/proc/net/rpc/nfsd.export/channel",
		"nodes "+s.export+" "+neverExpires+" "+exportFlags+" 65534 65534 0\n")
	s.set(t, "/proc/net/rpc/nfsd.fh/channel", `nodes 1 \x00000000 `+neverExpires+" "+s.export+"\n")
}

func (s *nfsServer) set(t *testing.T, path, value string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(value), fileMode), "%s to %s", value, filepath.Base(path))
}

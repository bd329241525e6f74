package vm_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/pool"
)

// TestNFSRenamedImage has one client open an image and cache its name, and another one replace
// it: the first must not take the old file for the image, although its cache says so.
func TestNFSRenamedImage(t *testing.T) {
	inMachine(t)

	const id = "01a210c0-9a71-73d8-8ce2-29f944b846ab"

	c := startNFSCluster(t, hardMount)
	pools := map[*nfsNode]*pool.Pool{c.a: nil, c.b: nil}

	for node := range pools {
		opened, err := pool.Open("default", node.sees(node.pool), pool.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, opened.Close()) })
		pools[node] = opened
	}

	require.NoError(t, pools[c.a].Images.Create(id, mib, false))

	old, err := pools[c.b].Images.Open(id, os.O_RDWR)
	require.NoError(t, err)

	defer old.Close()

	isCurrent, err := pools[c.b].Images.IsCurrent(id, old)
	require.NoError(t, err)
	require.True(t, isCurrent, "want: the name has the image that is open")

	filling, err := pools[c.a].Images.BeginFill(id, false)
	require.NoError(t, err)

	path, err := filling.Reserve()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte("filled"), fileMode))
	require.NoError(t, filling.Close(filling.Commit()))

	isCurrent, err = pools[c.b].Images.IsCurrent(id, old)
	require.NoError(t, err)
	require.False(t, isCurrent, "the image was replaced by another client")
	require.NoError(t, os.Remove(filepath.Join(c.server.export, "images", id+".img")))
}

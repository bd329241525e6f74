package pool_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/pool/quota"
)

// TestReasonWithoutProjectQuotas has filesystems that are mounted without project quotas. What they do
// with them needs another kernel and is tested in test/vm.
func TestReasonWithoutProjectQuotas(t *testing.T) {
	for _, test := range []struct {
		name, kind string
		remedy     []string
	}{
		{name: "ext4", kind: plain, remedy: []string{"unmount", "tune2fs -O project,quota", "option prjquota", "CONFIG_QFMT_V2"}},
		{name: "xfs", kind: reflink, remedy: []string{"unmount", "option prjquota", "rootflags=prjquota", "CONFIG_XFS_QUOTA"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			support := newPool(t, test.kind, 512*mebi).Directories.Support()

			require.Equal(t, quota.Plain, support.Kind)
			require.False(t, support.Limited, "want: the pool cannot limit directories")

			for _, each := range test.remedy {
				require.Contains(t, support.Reason, each)
			}
		})
	}
}

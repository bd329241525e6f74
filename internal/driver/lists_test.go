package driver_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// lister is a Controller service whose lists are answered when the test says so.
type lister struct {
	csi.UnimplementedControllerServer

	entered chan int32
	answer  chan struct{}
	// running and most count the lists without a limit.
	running, most atomic.Int32
}

func (l *lister) ListVolumes(_ context.Context, request *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if request.GetMaxEntries() == 0 {
		l.most.Store(max(l.most.Load(), l.running.Add(1)))
		defer l.running.Add(-1)
	}

	l.entered <- request.GetMaxEntries()
	<-l.answer

	return &csi.ListVolumesResponse{}, nil
}

// TestLargeListsWaitForEachOther: the answers to lists without a limit are made a few at a time,
// others do not wait, and a call whose deadline passes meanwhile fails with that.
func TestLargeListsWaitForEachOther(t *testing.T) {
	t.Parallel()

	const (
		callers = 60
		atOnce  = 4
	)

	served := &lister{entered: make(chan int32, 2*callers), answer: make(chan struct{})}
	r := start(t, func(config *driver.Config) {
		config.Mode, config.SimulateNode, config.KubeletDir = driver.ModeNode, true, "/var/lib/kubelet"
		config.Also = func(to grpc.ServiceRegistrar) { csi.RegisterControllerServer(to, served) }
	})
	co := csi.NewControllerClient(r.conn)

	var calls sync.WaitGroup

	list := func(entries int32) {
		calls.Go(func() {
			_, err := co.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: entries})
			if err != nil {
				t.Errorf("ListVolumes: %v", err)
			}
		})
	}

	for range callers {
		list(0)
	}

	for range atOnce {
		require.Zero(t, await.Receive(t, served.entered, "the first lists"), "want: the first lists ask for all entries")
	}

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()

	_, err := co.ListVolumes(ctx, &csi.ListVolumesRequest{})
	rpccode.Require(t, err, codes.DeadlineExceeded)

	list(100)
	require.EqualValues(t, 100, await.Receive(t, served.entered, "a list of few entries"), "want: a list of few entries does not wait")

	close(served.answer)
	await.Return(t, calls.Wait, "the calls")
	require.EqualValues(t, atOnce, served.most.Load(), "want: large lists run only as many at once as allowed")
}

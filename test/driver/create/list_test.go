package create_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// A property that fails prints what reproduces it, and leaves no file.
var _ = flag.Set("rapid.nofailfile", "true")

// TestListingWhileVolumesComeAndGo deletes and creates volumes between the
// pages, the token's own volume with preference: each volume that is there
// throughout is listed exactly once, none twice, and all in order.
func TestListingWhileVolumesComeAndGo(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	names := 0
	ctx := t.Context()

	create := func(t *rapid.T) string {
		names++

		made, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{
			Name: strconv.Itoa(names), CapacityRange: harness.RequiredBytes(harness.MiB), Parameters: harness.DirectoryBacked(),
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "")},
		})
		if err != nil {
			t.Fatal(err)
		}

		return made.GetVolume().GetVolumeId()
	}
	remove := func(t *rapid.T, id string) {
		if _, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
			t.Fatal(err)
		}
	}

	rapid.Check(t, func(t *rapid.T) {
		there := map[string]bool{}
		for range rapid.IntRange(0, 12).Draw(t, "volumes") {
			there[create(t)] = true
		}

		stayed, deleted := cloneKeys(there), map[string]bool{}

		var listed []string

		token := ""

		for pages := 0; ; pages++ {
			if pages == 1000 {
				t.Fatal("the list has no end after 1000 pages")
			}

			page, err := d.ListVolumes(ctx, &csi.ListVolumesRequest{
				MaxEntries: int32(rapid.IntRange(0, 4).Draw(t, "max_entries")), StartingToken: token,
			})
			if err != nil {
				t.Fatal(err)
			}

			for _, entry := range page.GetEntries() {
				id := entry.GetVolume().GetVolumeId()
				if deleted[id] {
					t.Fatalf("%s was deleted before its page was asked for", id)
				}

				listed = append(listed, id)
			}

			if token = page.GetNextToken(); token == "" {
				break
			}

			gone := drawSome(t, there, listed)
			for _, id := range gone {
				remove(t, id)
				delete(there, id)
				delete(stayed, id)

				deleted[id] = true
			}

			for range rapid.IntRange(0, 2).Draw(t, "created") {
				there[create(t)] = true
			}
		}

		for id := range there {
			remove(t, id)
		}

		if !slices.IsSorted(listed) || len(slices.Compact(slices.Clone(listed))) != len(listed) {
			t.Fatalf("not in order, or twice: %v", listed)
		}

		for id := range stayed {
			if !slices.Contains(listed, id) {
				t.Fatalf("%s is missing in %v", id, listed)
			}
		}
	})

	require.Empty(t, harness.ListAll(t, d), "want: no volume is left")
	conformance.Shows(t, "ListVolumes", "in pages", "every volume that stays once")
}

func cloneKeys(of map[string]bool) map[string]bool {
	clone := make(map[string]bool, len(of))
	for key := range of {
		clone[key] = true
	}

	return clone
}

// drawSome draws volumes to delete: the last that was listed, which the token
// may stand for, and any other.
func drawSome(t *rapid.T, there map[string]bool, listed []string) []string {
	var some []string

	if last := listed[len(listed)-1]; there[last] && rapid.Bool().Draw(t, "delete the token's volume") {
		some = append(some, last)
	}

	for _, id := range slices.Sorted(func(yield func(string) bool) {
		for id := range there {
			if !yield(id) {
				return
			}
		}
	}) {
		if !slices.Contains(some, id) && rapid.IntRange(0, 5).Draw(t, "delete") == 0 {
			some = append(some, id)
		}
	}

	return some
}

func TestListRefuses(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})

	for name, test := range map[string]struct {
		request *csi.ListVolumesRequest
		code    codes.Code
	}{
		"negative max_entries":     {&csi.ListVolumesRequest{MaxEntries: -1}, codes.InvalidArgument},
		"a number":                 {&csi.ListVolumesRequest{StartingToken: "5"}, codes.Aborted},
		"a path":                   {&csi.ListVolumesRequest{StartingToken: "../x"}, codes.Aborted},
		"a space":                  {&csi.ListVolumesRequest{StartingToken: " "}, codes.Aborted},
		"capitals":                 {&csi.ListVolumesRequest{StartingToken: strings.ToUpper(claim.VolumeID)}, codes.Aborted},
		"longer than a field is":   {&csi.ListVolumesRequest{StartingToken: strings.Repeat("a", 129)}, codes.InvalidArgument},
		"of a volume that is gone": {&csi.ListVolumesRequest{StartingToken: harness.UnknownVolume}, codes.OK},
		"beyond the last":          {&csi.ListVolumesRequest{StartingToken: claim.VolumeID}, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := d.ListVolumes(t.Context(), test.request)
			harness.RequireCode(t, err, test.code)
		})
	}

	page, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: claim.VolumeID})
	require.NoError(t, err)
	require.Empty(t, page.GetEntries(), "want: the page after the last volume is empty")
	require.Empty(t, page.GetNextToken(), "want: the last page has no next one")

	// A page that is just full is not said to have a next one.
	page, err = d.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 1})
	require.NoError(t, err)
	require.Len(t, page.GetEntries(), 1, "want: the page has the one volume")
	require.Empty(t, page.GetNextToken(), "want: a page that is just full has no next one")
}

// TestListStaysBelowFourMegabytes: no page size is asked for, and each volume's entry is as large
// as the spec allows: 4 KiB of volume_context.
func TestListStaysBelowFourMegabytes(t *testing.T) {
	t.Parallel()

	const volumes = 1100

	d := harness.Start(t)
	parameters := map[string]string{"backing": "directory", "mkfsOptions": strings.TrimSpace(strings.Repeat("-m 1 ", 780))}
	ids := make([]string, volumes)
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(64)

	for i := range volumes {
		group.Go(func() error {
			made, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{
				Name: strconv.Itoa(i), CapacityRange: harness.RequiredBytes(4096), Parameters: parameters,
				VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "")},
			})
			ids[i] = made.GetVolume().GetVolumeId()

			return err
		})
	}

	require.NoError(t, group.Wait())
	slices.Sort(ids)

	var listed []string

	token, pages := "", 0

	for pages == 0 || token != "" {
		page, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: token})
		require.NoError(t, err)
		require.Less(t, proto.Size(page), 4_000_000, "want: a page is below the limit of gRPC")

		for _, entry := range page.GetEntries() {
			listed = append(listed, entry.GetVolume().GetVolumeId())
		}

		token = page.GetNextToken()
		pages++
	}

	require.Equal(t, ids, listed)
	require.Equal(t, 2, pages, "want: the large list has two pages")
}

func TestListReportsPublishedNodes(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, harness.SharedPool, func(c *driver.Config) {
		for i := range 100 {
			c.Controller.Nodes = append(c.Controller.Nodes, fmt.Sprintf("node-%d", i))
		}
	})
	attached := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Name: "attached", Parameters: harness.DirectoryBacked(),
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.NodesWrite, "")},
	})
	idle := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "idle"})

	for _, node := range d.Config.Controller.Nodes {
		attached.NodeID = node
		require.NoError(t, d.Attach(t.Context(), attached))
	}

	published := func() map[string][]string {
		page, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		require.NoError(t, err)

		nodes := map[string][]string{}

		for _, entry := range page.GetEntries() {
			id := entry.GetVolume().GetVolumeId()
			nodes[id] = entry.GetStatus().GetPublishedNodeIds()

			one, err := d.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: id})
			require.NoError(t, err)
			require.True(t, proto.Equal(entry.GetVolume(), one.GetVolume()), "got %v, want %v", one.GetVolume(), entry.GetVolume())
			require.Equal(t, nodes[id], one.GetStatus().GetPublishedNodeIds())
		}

		return nodes
	}

	require.Equal(t, map[string][]string{attached.VolumeID: d.Config.Controller.Nodes, idle.VolumeID: nil}, published())
	d.Restart(t)
	require.Equal(t, map[string][]string{attached.VolumeID: d.Config.Controller.Nodes, idle.VolumeID: nil}, published())

	attached.NodeID = "node-7"
	require.NoError(t, d.Detach(t.Context(), attached))
	require.NotContains(t, published()[attached.VolumeID], "node-7")
	conformance.Shows(t, "ControllerUnpublishVolume", "node_id given", "published to the node no more")

	// No node means all of them.
	attached.NodeID = ""
	require.NoError(t, d.Detach(t.Context(), attached))
	require.Empty(t, published()[attached.VolumeID], "want: a detached volume is published nowhere")
	conformance.Shows(t, "ControllerUnpublishVolume", "node_id not given", "published to no node")
}

// TestAttachmentsAreLimited fills a node up to --max-volumes-per-node, at once.
func TestAttachmentsAreLimited(t *testing.T) {
	t.Parallel()

	const limit = 5

	d := harness.Start(t, harness.TwoNodes, func(c *driver.Config) { c.MaxVolumesPerNode = limit })

	info, err := d.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	require.NoError(t, err)
	require.EqualValues(t, limit, info.GetMaxVolumesPerNode(), "want: NodeGetInfo has the limit of volumes")

	claims := make([]*csiclient.Publication, 2*limit)
	for i := range claims {
		claims[i] = harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: strconv.Itoa(i), Parameters: harness.DirectoryBacked()})
	}

	errs := make([]error, len(claims))

	var group errgroup.Group
	for i, claim := range claims {
		group.Go(func() error {
			errs[i] = d.Attach(context.WithoutCancel(t.Context()), claim)

			return nil
		})
	}

	require.NoError(t, group.Wait())

	slots := map[string]bool{}

	for i, err := range errs {
		if err == nil {
			slots[claims[i].PublishContext["slot"]] = true

			continue
		}

		harness.RequireCode(t, err, codes.ResourceExhausted, harness.NodeID, "--max-volumes-per-node")
	}

	// The lowest free ones, each once.
	require.Equal(t, map[string]bool{"0": true, "1": true, "2": true, "3": true, "4": true}, slots)

	full := slices.IndexFunc(errs, func(err error) bool { return status.Code(err) == codes.ResourceExhausted })
	claims[full].NodeID = harness.SecondNode
	require.NoError(t, d.Attach(t.Context(), claims[full]))
	require.Equal(t, "0", claims[full].PublishContext["slot"])
}

// TestAPageHasNoMoreThanAskedFor, and each volume its own status.
func TestAPageHasNoMoreThanAskedFor(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, harness.TwoNodes, harness.SharedPool)
	nodes := map[string][]string{}

	for name, node := range map[string]string{"a": d.Config.NodeID, "b": harness.SecondNode, "c": "", "d": harness.SecondNode} {
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: name, Parameters: harness.DirectoryBacked()})
		nodes[claim.VolumeID] = nil

		if node != "" {
			claim.NodeID = node
			require.NoError(t, d.Attach(t.Context(), claim))

			nodes[claim.VolumeID] = []string{node}
		}
	}

	page, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 3})
	require.NoError(t, err)
	require.Len(t, page.GetEntries(), 3, "entries of the first page, of which 3 were asked for")

	rest, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 3, StartingToken: page.GetNextToken()})
	require.NoError(t, err)
	require.Len(t, rest.GetEntries(), 1, "entries of the second page")

	got := map[string][]string{}
	for _, entry := range append(page.GetEntries(), rest.GetEntries()...) {
		got[entry.GetVolume().GetVolumeId()] = entry.GetStatus().GetPublishedNodeIds()
	}

	require.Equal(t, nodes, got, "the nodes on which each volume is published")
}

// TestListedContextsAreThoseOfCreateVolume, of raw-block and mounted volumes of one StorageClass.
func TestListedContextsAreThoseOfCreateVolume(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	want := map[string]map[string]string{}

	for _, block := range []bool{false, true, false} {
		request := &csi.CreateVolumeRequest{Name: fmt.Sprint(t.Name(), len(want))}
		if block {
			request.VolumeCapabilities = []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}
		}

		claim := harness.NewVolume(t, d, request)
		want[claim.VolumeID] = claim.VolumeContext
	}

	listed, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	require.NoError(t, err)
	require.Len(t, listed.GetEntries(), len(want), "want: all volumes are listed")

	for _, entry := range listed.GetEntries() {
		require.Equal(t, want[entry.GetVolume().GetVolumeId()], entry.GetVolume().GetVolumeContext())
	}
}

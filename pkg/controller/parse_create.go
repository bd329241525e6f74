package controller

import (
	"cmp"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// createRequest is a valid CreateVolumeRequest. It does not change: what the claim and the source add is in the
// record of the volume alone.
type createRequest struct {
	name         string
	size         int64
	asked        *csi.CapacityRange
	topology     *csi.TopologyRequirement
	parameters   volume.Parameters
	capabilities []volume.Capability
	mutable      volume.Mutable
	pool         *pool.Pool
	source       record.Source
	// fsNamed: the request names the filesystem. Otherwise a copy has that of its source.
	fsNamed bool
	claim   claim
	// consistency is the consistency required of a clone.
	consistency volume.Consistency
}

// claim is the PersistentVolumeClaim that a volume is for; either part is empty if the CO does not set them.
type claim struct{ namespace, name string }

// parseCreate reads all of a request. Errors: INVALID_ARGUMENT, OUT_OF_RANGE, UNAVAILABLE while the pool cannot be
// used.
func (p *parser) parseCreate(request *csi.CreateVolumeRequest) (*createRequest, error) {
	source, badSource := p.parseSource(request.GetVolumeContentSource())
	parameters, badParameters := p.parseParameters(request.GetParameters())
	mutable, badMutable := p.parseMutable(request.GetMutableParameters())

	if err := cmp.Or(checkName(request.GetName()), badSource, badParameters, badMutable, p.changes.CheckMutable(parameters, mutable),
		record.CheckTopologyRequirement(request.GetAccessibilityRequirements(), p.hasTopology())); err != nil {
		return nil, err
	}

	if len(request.GetVolumeCapabilities()) == 0 {
		return nil, rpc.Invalid("volume_capabilities are missing")
	}

	capabilities, err := p.parseCapabilities(request.GetVolumeCapabilities(), parameters)
	if err != nil {
		return nil, rpc.Invalid("volume_capabilities: %w", err)
	}

	// From here on the parameters say what the volume is.
	fsNamed := request.GetParameters()[volume.KeyFSType] != ""

	for _, each := range capabilities {
		if !each.Block {
			parameters.FSType = fsTypeOf(parameters, each)
			fsNamed = fsNamed || each.FSType != ""
		}
	}

	size, err := p.sizeAsked(request.GetCapacityRange(), minimumBytes(parameters, capabilities))
	err = cmp.Or(err, checkContext(parameters, source))

	if source.IsZero() || fsNamed {
		err = cmp.Or(err, checkMkfs(parameters))
	}

	if err != nil {
		return nil, err
	}

	chosen, err := p.config.Pools.Get(parameters.Pool)

	return &createRequest{
		name: request.GetName(), size: size, asked: request.GetCapacityRange(),
		topology: request.GetAccessibilityRequirements(), parameters: parameters, capabilities: capabilities,
		mutable: mutable, pool: chosen, source: source, fsNamed: fsNamed,
		consistency: volume.CloneConsistency(request.GetParameters()),
		claim:       claim{request.GetParameters()[volume.KeyClaimNamespace], request.GetParameters()[volume.KeyClaimName]},
	}, err
}

// parseSource reads volume_content_source. Errors: INVALID_ARGUMENT.
func (p *parser) parseSource(given *csi.VolumeContentSource) (record.Source, error) {
	const gated = "volume_content_source: it must not be a %s, as the capability %s is not advertised"

	if given == nil {
		return record.Source{}, nil
	}

	source := record.Source{SnapshotID: given.GetSnapshot().GetSnapshotId(), VolumeID: given.GetVolume().GetVolumeId()}

	switch given.GetType().(type) {
	case *csi.VolumeContentSource_Snapshot:
		if !p.has(capability.CreateDeleteSnapshot) {
			return record.Source{}, rpc.Invalid(gated, "snapshot", capability.CreateDeleteSnapshot)
		}

		return source, rpc.CheckID("volume_content_source: snapshot_id", source.SnapshotID)
	case *csi.VolumeContentSource_Volume:
		if !p.has(capability.CloneVolume) {
			return record.Source{}, rpc.Invalid(gated, "volume", capability.CloneVolume)
		}

		return source, rpc.CheckID("volume_content_source: volume_id", source.VolumeID)
	default:
		return record.Source{}, rpc.Invalid("volume_content_source: name a snapshot or a volume")
	}
}

// checkContext refuses parameters whose volume_context is longer than the spec allows a map to be:
// a CO could not pass it on.
func checkContext(parameters volume.Parameters, source record.Source) error {
	bytes := 0
	for key, value := range (&record.Volume{Properties: &record.Properties{Parameters: parameters}, Source: source}).Context() {
		bytes += len(key) + len(value)
	}

	if bytes > maxMapBytes {
		return rpc.Invalid("parameters: the volume_context with them has %d bytes; the CSI spec allows %d", bytes, maxMapBytes)
	}

	return nil
}

// maxMapBytes is the spec's limit for a map (CSI v1.13, Size Limits).
const maxMapBytes = 4096

// checkMkfs refuses what would make a volume that no node can ever format.
func checkMkfs(parameters volume.Parameters) error {
	if err := filesystem.CheckOptions(parameters.FSType, strings.Fields(parameters.MkfsOptions)); err != nil {
		return rpc.Invalid("parameters: %s: %w", volume.KeyMkfsOptions, err)
	}

	return nil
}

// minimumBytes is the smallest volume with these parameters.
func minimumBytes(parameters volume.Parameters, capabilities []volume.Capability) int64 {
	smallest := int64(RoundBytes)

	for _, each := range capabilities {
		if each.Block || !parameters.Backing.HasFilesystem() {
			continue
		}

		// Which filesystems there are was checked with the capability.
		if made, err := filesystem.ByName(fsTypeOf(parameters, each), nil); err == nil {
			smallest = max(smallest, made.MinimumBytes())
		}
	}

	return smallest
}

func fsTypeOf(parameters volume.Parameters, wanted volume.Capability) string {
	return cmp.Or(wanted.FSType, parameters.FSType)
}

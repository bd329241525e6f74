package controller

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"unicode"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/changes"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// parser reads requests, and refuses those that are wrong in any state of the volumes. It has what the service is
// configured with, which the service takes from it.
type parser struct {
	config   Config
	segments record.Segments
	changes  *changes.Changes
}

func (p *parser) has(name capability.Name) bool { return p.config.Capabilities.HasController(name) }

// hasTopology reports whether the plugin advertises VOLUME_ACCESSIBILITY_CONSTRAINTS.
func (p *parser) hasTopology() bool { return p.segments != "" }

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

// checkName allows what the spec does (CSI v1.13, CreateVolumeRequest.name): the
// name is never part of a path, only unprintable characters are banned.
func checkName(name string) error {
	if name == "" {
		return rpc.Invalid("name is missing")
	}

	banned := func(r rune) bool { return unicode.IsControl(r) && !strings.ContainsRune("\t\n\r", r) }
	if strings.ContainsFunc(name, banned) {
		return rpc.Invalid("name %q holds a control character that the CSI spec bans", name)
	}

	return nil
}

// parseParameters reads the parameters. Errors: INVALID_ARGUMENT.
func (p *parser) parseParameters(given map[string]string) (volume.Parameters, error) {
	parameters, err := volume.ParseParameters(given)
	if err != nil {
		return volume.Parameters{}, rpc.Invalid("parameters: %w", err)
	}

	if _, named := given[volume.KeyPool]; !named {
		parameters.Pool = p.config.Pools.Default()
	}

	if !p.config.Pools.Has(parameters.Pool) {
		return volume.Parameters{}, rpc.Invalid("parameters: pool %q does not exist; there are %s",
			parameters.Pool, strings.Join(p.config.Pools.Names(), ", "))
	}

	return parameters, nil
}

// parseMutable reads mutable_parameters. Errors: INVALID_ARGUMENT.
func (p *parser) parseMutable(given map[string]string) (volume.Mutable, error) {
	if len(given) > 0 && !p.has(capability.ModifyVolume) {
		return volume.Mutable{}, rpc.Invalid("mutable_parameters must be empty, as the capability %s is not advertised",
			capability.ModifyVolume)
	}

	mutable, err := volume.ParseMutable(given)
	if err != nil {
		return volume.Mutable{}, rpc.Invalid("mutable_parameters: %w", err)
	}

	return mutable, nil
}

// parseCapability refuses, with volume.ErrCapability, a capability that no volume can have.
func (p *parser) parseCapability(given *csi.VolumeCapability) (volume.Capability, error) {
	parsed, err := volume.ParseCapability(given)
	if err != nil {
		return volume.Capability{}, err
	}

	return parsed, p.config.Capabilities.CheckAccessMode(parsed)
}

// checkCapability refuses, with volume.ErrCapability, a capability that an existing volume cannot
// have.
func (p *parser) checkCapability(wanted volume.Capability, to *record.Volume) error {
	err := to.Parameters.CheckCapability(wanted, p.config.Shared)
	if err != nil || to.IsRaw() {
		return err
	}

	return to.Parameters.CheckFSType(wanted)
}

// parseCapabilities refuses, with volume.ErrCapability, capabilities that no volume with these parameters can
// have together.
func (p *parser) parseCapabilities(
	given []*csi.VolumeCapability, parameters volume.Parameters,
) (capabilities []volume.Capability, err error) {
	fsType := ""

	for _, each := range given {
		parsed, err := p.parseCapability(each)
		if err := cmp.Or(err, parameters.CheckCapability(parsed, p.config.Shared)); err != nil {
			return nil, err
		}

		if !parsed.Block {
			wanted := fsTypeOf(parameters, parsed)
			if fsType != "" && wanted != fsType {
				return nil, fmt.Errorf("%w: a volume can't be both %s and %s", volume.ErrCapability, fsType, wanted)
			}

			fsType = wanted
		}

		capabilities = append(capabilities, parsed)
	}

	return capabilities, nil
}

// sizeFor is sizeAsked, and returns OUT_OF_RANGE for a size above the maximum, too.
func (p *parser) sizeFor(asked *csi.CapacityRange, smallest int64) (int64, error) {
	size, err := p.sizeAsked(asked, smallest)
	if err := cmp.Or(err, p.checkLargest(size)); err != nil {
		return 0, err
	}

	return size, nil
}

// sizeAsked returns the size that is asked for: what is required, rounded up, but not less than the filesystem
// needs. Errors: INVALID_ARGUMENT for a range that makes no sense, OUT_OF_RANGE for one that can't be met.
func (p *parser) sizeAsked(asked *csi.CapacityRange, smallest int64) (int64, error) {
	if err := rpc.CheckCapacityRange(asked); err != nil {
		return 0, err
	}

	required, limit := asked.GetRequiredBytes(), asked.GetLimitBytes()

	switch {
	case required == 0:
		required = DefaultBytes
		for _, most := range []int64{limit, p.config.MaxVolumeBytes} {
			if most > 0 {
				required = min(required, most/RoundBytes*RoundBytes)
			}
		}
	case required > math.MaxInt64-RoundBytes:
		return 0, rpc.Errorf(codes.OutOfRange, "capacity_range: required_bytes %d is more than any volume can have", required)
	}

	size := max((required+RoundBytes-1)/RoundBytes*RoundBytes, smallest)

	if limit > 0 && size > limit {
		return 0, rpc.Errorf(codes.OutOfRange,
			"capacity_range: the smallest volume that holds %d bytes has %d, more than limit_bytes %d", required, size, limit)
	}

	return size, nil
}

// checkLargest returns OUT_OF_RANGE for the size of a new volume that is above the maximum. One that exists
// may be larger: the maximum may have been lowered.
func (p *parser) checkLargest(size int64) error {
	if p.config.MaxVolumeBytes > 0 && size > p.config.MaxVolumeBytes {
		return rpc.Errorf(codes.OutOfRange,
			"capacity_range: %d bytes are more than the largest volume has, %d (--max-volume-size)", size, p.config.MaxVolumeBytes)
	}

	return nil
}

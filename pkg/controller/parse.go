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

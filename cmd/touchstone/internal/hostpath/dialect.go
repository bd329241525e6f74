package hostpath

import (
	"cmp"
	"context"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

const (
	// TopologyKey is the key of a node's segment, which stands for record.NodeSegmentKey.
	TopologyKey = "topology.hostpath.csi/node"
	// kindKey is the parameter of a StorageClass that names a kind of capacity.
	kindKey = "kind"
	// unusedWait is how long a call waits for its volume to be unused, and unusedPause the pause between two tries.
	unusedWait, unusedPause = 5 * time.Second, 100 * time.Millisecond
	// ephemeralBytes is the size of an inline ephemeral volume that names none.
	ephemeralBytes = "100Mi"
)

// Dialect translates calls. It is safe for concurrent use.
type Dialect struct {
	flags *Flags
	// kinds are those of -capacity, which are the names of the pools.
	kinds []string

	mu  sync.Mutex
	log io.Writer
}

// Dialect returns the dialect that the flags ask for. Each call is written to log if -v is 5 or more.
func (f *Flags) Dialect(log io.Writer) *Dialect {
	d := &Dialect{flags: f, kinds: slices.Sorted(maps.Keys(f.capacities))}

	if f.verbosity >= verbosityOfCalls {
		d.log = log
	}

	return d
}

// Translate is the inner interceptor: it has a request be one that the driver knows, and the response
// be one that a CO of hostpathplugin knows.
func (d *Dialect) Translate(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	message, isMessage := request.(proto.Message)
	if !isMessage {
		return next(ctx, request)
	}

	message = proto.Clone(message)
	renameSegments(message, TopologyKey, record.NodeSegmentKey)

	return d.translate(ctx, message, func(ctx context.Context, request any) (any, error) {
		response, err := next(ctx, request)

		message, isMessage := response.(proto.Message)
		if err != nil || !isMessage {
			return response, err
		}

		message = proto.Clone(message)
		renameSegments(message, record.NodeSegmentKey, TopologyKey)
		d.adapt(message)

		return message, nil
	})
}

// adapt has a response be one that a CO of hostpathplugin knows.
func (d *Dialect) adapt(response proto.Message) {
	switch response := response.(type) {
	case *csi.ControllerExpandVolumeResponse:
		// The node also expands what it need not: Kubernetes' tests of the node's expansion expect its call.
		response.NodeExpansionRequired = !d.flags.noNodeExpansion
	case *csi.GetCapacityResponse:
		if len(d.kinds) == 0 {
			response.AvailableCapacity = min(response.GetAvailableCapacity(), d.flags.maxVolumeSize)
		}
	case *csi.NodeGetInfoResponse:
		if d.flags.attachLimit == randomLimit {
			response.MaxVolumesPerNode = rand.Int64N(maxRandomLimit) + 1 //nolint:gosec // no secret
		}
	}
}

func (d *Dialect) translate(ctx context.Context, request any, next grpc.UnaryHandler) (any, error) {
	switch request := request.(type) {
	case *csi.CreateVolumeRequest:
		return d.create(ctx, request, next)
	case *csi.GetCapacityRequest:
		return d.capacity(ctx, request, next)
	case *csi.ControllerModifyVolumeRequest:
		if err := d.checkAccepted(request.GetMutableParameters()); err != nil {
			return nil, err
		}

		request.MutableParameters = opaque(request.GetMutableParameters())
	case *csi.DeleteVolumeRequest:
		return d.whenUnused(ctx, request, next)
	case *csi.ValidateVolumeCapabilitiesRequest:
		return d.validate(ctx, request, next)
	case *csi.CreateSnapshotRequest:
		request.Parameters = withConsistency(known(request.GetParameters()))
	case *csi.CreateVolumeGroupSnapshotRequest:
		request.Parameters = withConsistency(known(request.GetParameters()))
	case *csi.NodeExpandVolumeRequest:
		largest := cmp.Or(d.flags.maxVolumeSizeNode, d.flags.maxVolumeSize)
		if wanted := request.GetCapacityRange().GetRequiredBytes(); wanted > largest {
			return nil, status.Errorf(codes.OutOfRange, "required_bytes: %d is more than the %d of -max-volume-size-node", wanted, largest)
		}
	case *csi.NodePublishVolumeRequest:
		return d.publish(ctx, request, next)
	}

	return next(ctx, request)
}

func (d *Dialect) create(ctx context.Context, request *csi.CreateVolumeRequest, next grpc.UnaryHandler) (any, error) {
	given := request.GetParameters()

	if err := d.checkAccepted(request.GetMutableParameters()); err != nil {
		return nil, err
	}

	request.MutableParameters = opaque(request.GetMutableParameters())
	request.Parameters = withBacking(known(given), request.GetVolumeCapabilities()...)
	if request.GetVolumeContentSource().GetVolume() != nil {
		request.Parameters = withConsistency(request.GetParameters())
	}

	response, err := d.inAKind(given, request.GetParameters(), func() (any, error) { return next(ctx, request) })
	if err != nil {
		return nil, err
	}

	made, _ := response.(*csi.CreateVolumeResponse)
	// A volume's context has the parameters of its StorageClass.
	merged := map[string]string{}
	maps.Copy(merged, given)
	maps.Copy(merged, made.GetVolume().GetVolumeContext())
	made.Volume.VolumeContext = merged

	return made, nil
}

// validate compares the mutable parameters, and confirms those of the StorageClass as they are given: the
// volume was made with the driver's own.
func (d *Dialect) validate(ctx context.Context, request *csi.ValidateVolumeCapabilitiesRequest, next grpc.UnaryHandler) (any, error) {
	parameters, mutable := request.GetParameters(), request.GetMutableParameters()
	request.Parameters, request.MutableParameters = nil, opaque(mutable)

	response, err := next(ctx, request)
	if answer, _ := response.(*csi.ValidateVolumeCapabilitiesResponse); answer.GetConfirmed() != nil {
		answer.Confirmed.Parameters, answer.Confirmed.MutableParameters = parameters, mutable
	}

	return response, err
}

// whenUnused waits for a CO that unstages a volume too late, as Kubernetes does for volumes that are not
// attached: hostpathplugin only warns then, unless it checks the lifecycle of volumes.
func (d *Dialect) whenUnused(ctx context.Context, request any, next grpc.UnaryHandler) (any, error) {
	waiting, cancel := context.WithTimeout(ctx, unusedWait)
	defer cancel()

	for {
		response, err := next(ctx, request)
		if d.flags.lifecycle || status.Code(err) != codes.FailedPrecondition {
			return response, err
		}

		select {
		case <-waiting.Done():
			return response, err
		case <-time.After(unusedPause):
		}
	}
}

// inAKind has a volume made in the pool of its kind, or in the first one that takes it.
func (d *Dialect) inAKind(given, parameters map[string]string, makeVolume func() (any, error)) (any, error) {
	kind, kinds := given[kindKey], d.kinds

	switch {
	case parameters[volume.KeyPool] != "", len(d.kinds) == 0 && kind == "":
		return makeVolume()
	case len(d.kinds) == 0:
		return nil, status.Errorf(codes.InvalidArgument, "parameters: kind is %q, but there are no kinds: give the driver -capacity", kind)
	case kind != "":
		kinds = []string{kind}
	}

	var (
		response any
		err      error
	)

	for _, each := range kinds {
		parameters[volume.KeyPool] = each

		// A volume of an earlier call may be in another one.
		response, err = makeVolume()
		if code := status.Code(err); code != codes.ResourceExhausted && code != codes.AlreadyExists {
			break
		}
	}

	return response, err
}

func (d *Dialect) capacity(ctx context.Context, request *csi.GetCapacityRequest, next grpc.UnaryHandler) (any, error) {
	kind := request.GetParameters()[kindKey]
	request.Parameters = withBacking(known(request.GetParameters()), request.GetVolumeCapabilities()...)

	switch {
	case len(d.kinds) == 0:
	case !slices.Contains(d.kinds, kind):
		return &csi.GetCapacityResponse{}, nil
	default:
		request.Parameters[volume.KeyPool] = kind
	}

	return next(ctx, request)
}

func (d *Dialect) publish(ctx context.Context, request *csi.NodePublishVolumeRequest, next grpc.UnaryHandler) (any, error) {
	given := request.GetVolumeContext()

	if d.flags.ephemeral && given[volume.KeyEphemeral] == "" {
		request.VolumeContext = map[string]string{}
		maps.Copy(request.GetVolumeContext(), given)
		request.VolumeContext[volume.KeyEphemeral] = "true"
	}

	if !volume.IsEphemeral(request.GetVolumeContext()) {
		return next(ctx, request)
	}

	request.VolumeContext = withBacking(known(request.GetVolumeContext()), request.GetVolumeCapability())
	request.VolumeContext[volume.KeySize] = cmp.Or(given[volume.KeySize], ephemeralBytes)

	return d.inAKind(given, request.GetVolumeContext(), func() (any, error) { return next(ctx, request) })
}

// checkAccepted refuses mutable parameters with INVALID_ARGUMENT that are not accepted. Where none may be
// given, the driver refuses them.
func (d *Dialect) checkAccepted(mutable map[string]string) error {
	for name := range mutable {
		if d.flags.modify && len(d.flags.mutable) > 0 && !slices.Contains(d.flags.mutable, name) {
			return status.Errorf(codes.InvalidArgument, "mutable_parameters: %q is not one of -accepted-mutable-parameter-names", name)
		}
	}

	return nil
}

// opaque marks the mutable parameters that the driver does not know, as all are to hostpathplugin.
func opaque(given map[string]string) map[string]string {
	marked := map[string]string{}

	for name, value := range given {
		if !volume.IsMutable(name) {
			name = volume.OpaquePrefix + name
		}

		marked[name] = value
	}

	return marked
}

// known returns the parameters that the driver knows.
func known(given map[string]string) map[string]string {
	left := map[string]string{}

	for key, value := range given {
		if volume.IsParameter(key) {
			left[key] = value
		}
	}

	return left
}

// withBacking adds that a volume to be mounted is a directory, which needs no device.
func withBacking(parameters map[string]string, capabilities ...*csi.VolumeCapability) map[string]string {
	isBlock := slices.ContainsFunc(capabilities, func(each *csi.VolumeCapability) bool { return each.GetBlock() != nil })
	if parameters[volume.KeyBacking] == "" && !isBlock {
		parameters[volume.KeyBacking] = string(volume.BackingDirectory)
	}

	return parameters
}

// withConsistency adds that a volume is copied while it is in use, as hostpathplugin does: a directory
// cannot be frozen.
func withConsistency(parameters map[string]string) map[string]string {
	if parameters[volume.KeyConsistency] == "" {
		parameters[volume.KeyConsistency] = string(volume.ConsistencyNone)
	}

	return parameters
}

// renameSegments renames a key in each topology of a message.
func renameSegments(message proto.Message, from, to string) {
	// It fails only if the function does.
	_ = protorange.Range(message.ProtoReflect(), func(at protopath.Values) error {
		inner, isMessage := at.Index(-1).Value.Interface().(protoreflect.Message)
		if !isMessage {
			return nil
		}

		topology, isTopology := inner.Interface().(*csi.Topology)
		if value, has := topology.GetSegments()[from]; isTopology && has {
			delete(topology.GetSegments(), from)
			topology.GetSegments()[to] = value
		}

		return nil
	})
}

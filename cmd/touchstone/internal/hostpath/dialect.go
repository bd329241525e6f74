package hostpath

import (
	"context"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

const (
	// TopologyKey is the key of a node's segment, which stands for record.NodeSegmentKey.
	TopologyKey = "topology.hostpath.csi/node"
	// kindKey is the parameter of a StorageClass that names a kind of capacity.
	kindKey = "kind"
	// ephemeralBytes is the size of an inline ephemeral volume that names none.
	ephemeralBytes = "100Mi"
)

// Dialect translates calls. It is safe for concurrent use.
type Dialect struct {
	// kinds are those of -capacity, which are the names of the pools.
	kinds []string
	// mutable are the accepted mutable parameters; none are all.
	mutable []string
	// Both sizes are bytes.
	maxVolumeSize, maxVolumeSizeNode int64
	ephemeral, modify                bool

	mu  sync.Mutex
	log io.Writer
}

// Dialect returns the dialect that the flags ask for. Each call is written to log if -v is 5 or more.
func (f *Flags) Dialect(log io.Writer) *Dialect {
	d := &Dialect{
		kinds: slices.Sorted(maps.Keys(f.capacities)), mutable: f.mutable, ephemeral: f.ephemeral, modify: f.modify,
		maxVolumeSize: f.maxVolumeSize, maxVolumeSizeNode: f.maxVolumeSizeNode,
	}
	if f.maxVolumeSizeNode == 0 {
		d.maxVolumeSizeNode = f.maxVolumeSize
	}

	if f.verbosity >= verbosityOfCalls {
		d.log = log
	}

	return d
}

// Translate is the inner interceptor: it has a request be one that the driver knows, and the response
// be one that a CO of hostpathplugin knows.
func (d *Dialect) Translate(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	message, isMessage := request.(proto.Message)
	if !isMessage {
		return next(ctx, request)
	}

	message = proto.Clone(message)
	renameSegments(message, TopologyKey, record.NodeSegmentKey)

	response, err := d.translate(ctx, message, info, next)

	message, isMessage = response.(proto.Message)
	if err != nil || !isMessage {
		return response, err
	}

	message = proto.Clone(message)
	renameSegments(message, record.NodeSegmentKey, TopologyKey)

	return message, nil
}

func (d *Dialect) translate(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	switch request := request.(type) {
	case *csi.CreateVolumeRequest:
		return d.create(ctx, request, next)
	case *csi.GetCapacityRequest:
		return d.capacity(ctx, request, next)
	case *csi.ControllerModifyVolumeRequest:
		return d.modifyVolume(ctx, request, info, next)
	case *csi.ValidateVolumeCapabilitiesRequest:
		request.Parameters = known(request.GetParameters())
	case *csi.CreateSnapshotRequest:
		request.Parameters = withConsistency(known(request.GetParameters()))
	case *csi.CreateVolumeGroupSnapshotRequest:
		request.Parameters = withConsistency(known(request.GetParameters()))
	case *csi.NodeExpandVolumeRequest:
		if wanted := request.GetCapacityRange().GetRequiredBytes(); wanted > d.maxVolumeSizeNode {
			return nil, status.Errorf(codes.OutOfRange, "required_bytes: %d is more than the %d of -max-volume-size-node",
				wanted, d.maxVolumeSizeNode)
		}
	case *csi.NodePublishVolumeRequest:
		return d.publish(ctx, request, next)
	}

	return next(ctx, request)
}

func (d *Dialect) create(ctx context.Context, request *csi.CreateVolumeRequest, next grpc.UnaryHandler) (any, error) {
	given := request.GetParameters()

	mutable, err := d.knownMutable(request.GetMutableParameters())
	if err != nil {
		return nil, err
	}

	request.MutableParameters = mutable
	request.Parameters = withBacking(known(given), request.GetVolumeCapabilities()...)
	if request.GetVolumeContentSource().GetVolume() != nil {
		request.Parameters = withConsistency(request.GetParameters())
	}

	response, err := d.inAKind(given, request.GetParameters(), func() (any, error) { return next(ctx, request) })
	if err != nil {
		return nil, err
	}

	made, _ := response.(*csi.CreateVolumeResponse)
	made = proto.CloneOf(made)
	// A volume's context has the parameters of its StorageClass.
	merged := maps.Clone(given)
	if merged == nil {
		merged = map[string]string{}
	}

	maps.Copy(merged, made.GetVolume().GetVolumeContext())
	made.Volume.VolumeContext = merged

	return made, nil
}

func (d *Dialect) modifyVolume(
	ctx context.Context, request *csi.ControllerModifyVolumeRequest, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (any, error) {
	left, err := d.knownMutable(request.GetMutableParameters())
	if err != nil {
		return nil, err
	}

	controller, isController := info.Server.(csi.ControllerServer)
	if len(left) > 0 || len(request.GetMutableParameters()) == 0 || !isController {
		request.MutableParameters = left

		return next(ctx, request)
	}

	// The driver refuses a request without parameters. Opaque ones change nothing of a volume that there is.
	if _, err := controller.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: request.GetVolumeId()}); err != nil {
		return nil, rpc.Status(err)
	}

	return &csi.ControllerModifyVolumeResponse{}, nil
}

// inAKind has a volume made in the pool of its kind, or in the first one that takes it.
func (d *Dialect) inAKind(given, parameters map[string]string, makeVolume func() (any, error)) (any, error) {
	kind := given[kindKey]

	switch {
	case parameters[volume.KeyPool] != "":
		return makeVolume()
	case len(d.kinds) == 0 && kind != "":
		return nil, status.Errorf(codes.InvalidArgument, "parameters: kind is %q, but there are no kinds: give the driver -capacity", kind)
	case len(d.kinds) == 0:
		return makeVolume()
	case kind != "":
		parameters[volume.KeyPool] = kind

		return makeVolume()
	}

	var (
		response any
		err      error
	)

	for _, each := range d.kinds {
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

	response, err := next(ctx, request)
	if has, _ := response.(*csi.GetCapacityResponse); has != nil && len(d.kinds) == 0 {
		has = proto.CloneOf(has)
		has.AvailableCapacity = min(has.GetAvailableCapacity(), d.maxVolumeSize)

		return has, err
	}

	return response, err
}

func (d *Dialect) publish(ctx context.Context, request *csi.NodePublishVolumeRequest, next grpc.UnaryHandler) (any, error) {
	given := request.GetVolumeContext()

	if d.ephemeral && given[volume.KeyEphemeral] == "" {
		request.VolumeContext = maps.Clone(given)
		if request.VolumeContext == nil {
			request.VolumeContext = map[string]string{}
		}

		request.VolumeContext[volume.KeyEphemeral] = "true"
	}

	if !volume.IsEphemeral(request.GetVolumeContext()) {
		return next(ctx, request)
	}

	request.VolumeContext = withBacking(known(request.GetVolumeContext()), request.GetVolumeCapability())
	request.VolumeContext[volume.KeySize] = ephemeralBytes

	if size := given[volume.KeySize]; size != "" {
		request.VolumeContext[volume.KeySize] = size
	}

	return d.inAKind(given, request.GetVolumeContext(), func() (any, error) { return next(ctx, request) })
}

// knownMutable returns those of the mutable parameters that the driver knows. All others are opaque, as
// all are to hostpathplugin. Where none may be given, the driver refuses them. Error: INVALID_ARGUMENT, for
// one that is not accepted.
func (d *Dialect) knownMutable(given map[string]string) (map[string]string, error) {
	if !d.modify {
		return given, nil
	}

	left := map[string]string{}

	for name, value := range given {
		if len(d.mutable) > 0 && !slices.Contains(d.mutable, name) {
			return nil, status.Errorf(codes.InvalidArgument, "mutable_parameters: %q is not one of -accepted-mutable-parameter-names", name)
		}

		if volume.IsMutable(name) {
			left[name] = value
		}
	}

	return left, nil
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

package capability

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
)

// ErrContradiction is returned for a set of capabilities that the spec does not allow.
var ErrContradiction = errors.New("contradictory capabilities")

// ErrUnknown is returned for a name that no capability of the driver has.
var ErrUnknown = errors.New("unknown capability")

// Set is the set of capabilities that are not disabled. The zero value has all of them.
type Set struct {
	disabled map[Name]bool
	// ofService has the capabilities that only one service lacks.
	ofService map[serviceCapability]bool
	// methods maps the full name of a method that is not served to its disabled capability.
	methods map[string]Name
}

type serviceCapability struct {
	service string
	name    Name
}

// Without returns all capabilities but the named ones and those that can't be
// advertised without them. Errors: ErrUnknown, which names the known ones; ErrContradiction.
func Without(names ...string) (Set, error) {
	s := Set{disabled: map[Name]bool{}, ofService: map[serviceCapability]bool{}, methods: map[string]Name{}}

	for _, given := range names {
		service, name, ofService := strings.Cut(given, ":")
		if !ofService {
			name = given
		}

		at := slices.IndexFunc(entries, func(r entry) bool { return string(r.name) == name || r.alias == name && name != "" })
		if at < 0 {
			return Set{}, fmt.Errorf("%w %q: there are %s", ErrUnknown, name, strings.Join(Names(), ", "))
		}

		if !ofService {
			s.disable(entries[at])
		} else if err := s.disableOf(service, entries[at]); err != nil {
			return Set{}, err
		}
	}

	// Without ONLINE the plugin advertises OFFLINE, whose volumes only a controller can expand.
	if s.Has(ExpandVolume) && !s.Has(Online) && !s.Has(ControllerService) {
		return Set{}, fmt.Errorf("%w: %s needs %s or %s; disable %s too", ErrContradiction, ExpandVolume, Online, ControllerService, ExpandVolume)
	}

	return s, nil
}

// disableOf disables a capability that two services have in one of them.
func (s Set) disableOf(service string, gone entry) error {
	prefix, ok := servicePrefixes[service]
	if !ok || !gone.isOfBoth() {
		return fmt.Errorf("%w %q: controller: and node: are for the capabilities that both services have, %s",
			ErrUnknown, service+":"+string(gone.name), strings.Join(NamesOfBoth(), ", "))
	}

	s.ofService[serviceCapability{service, gone.name}] = true

	for _, method := range gone.methods {
		if strings.HasPrefix(method, prefix) {
			s.methods[method] = gone.name
		}
	}

	return nil
}

// servicePrefixes has the services that have capabilities in common, and what the full names of their methods
// begin with.
var servicePrefixes = map[string]string{
	"controller": "/" + csi.Controller_ServiceDesc.ServiceName + "/",
	"node":       "/" + csi.Node_ServiceDesc.ServiceName + "/",
}

func (s Set) disable(gone entry) {
	if !s.Has(gone.name) {
		return
	}

	s.disabled[gone.name] = true
	for _, method := range gone.methods {
		s.methods[method] = gone.name
	}

	for _, other := range entries {
		if slices.Contains(other.needs, gone.name) {
			s.disable(other)
		}
	}
}

// Names returns every name that Without accepts, each with its alias.
func Names() []string {
	names := make([]string, 0, len(entries))

	for _, r := range entries {
		text := string(r.name)
		if r.alias != "" {
			text += " (or " + r.alias + ")"
		}

		names = append(names, text)
	}

	return names
}

// NamesOfBoth returns the names that Without also accepts after controller: and node:, to disable the
// capability in that service only.
func NamesOfBoth() []string {
	var names []string

	for _, each := range entries {
		if each.isOfBoth() {
			names = append(names, string(each.name))
		}
	}

	return names
}

// Has says whether the capability is advertised and served, by one service at least.
func (s Set) Has(name Name) bool { return !s.disabled[name] }

// HasController says whether the Controller service advertises and serves the capability.
func (s Set) HasController(name Name) bool {
	return s.Has(name) && !s.ofService[serviceCapability{"controller", name}]
}

// HasNode is HasController for the Node service.
func (s Set) HasNode(name Name) bool {
	return s.Has(name) && !s.ofService[serviceCapability{"node", name}]
}

// DisabledBy returns the capability whose absence keeps the method, such as
// /csi.v1.Node/NodeStageVolume, from being served.
func (s Set) DisabledBy(method string) (Name, bool) {
	name, unserved := s.methods[method]

	return name, unserved
}

// Plugin is the answer of GetPluginCapabilities. Without topology every volume is accessible from every
// node.
func (s Set) Plugin(topology bool) []*csi.PluginCapability {
	has := func(name Name) bool {
		return s.Has(name) && (topology || name != VolumeAccessibilityConstraints && name != SnapshotConstraints)
	}
	all := advertised(csi.PluginCapability_Service_Type_value, has, func(number int32) *csi.PluginCapability {
		return &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_Type(number)},
		}}
	})

	if !s.Has(ExpandVolume) {
		return all
	}

	expansion := csi.PluginCapability_VolumeExpansion_OFFLINE
	if s.Has(Online) {
		expansion = csi.PluginCapability_VolumeExpansion_ONLINE
	}

	return append(all, &csi.PluginCapability{Type: &csi.PluginCapability_VolumeExpansion_{
		VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: expansion},
	}})
}

// Controller is the answer of ControllerGetCapabilities.
func (s Set) Controller() []*csi.ControllerServiceCapability {
	return advertised(controllerTypes, s.HasController, func(number int32) *csi.ControllerServiceCapability {
		return &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_Type(number)},
		}}
	})
}

// GroupController is the answer of GroupControllerGetCapabilities.
func (s Set) GroupController() []*csi.GroupControllerServiceCapability {
	types := csi.GroupControllerServiceCapability_RPC_Type_value

	return advertised(types, s.Has, func(number int32) *csi.GroupControllerServiceCapability {
		return &csi.GroupControllerServiceCapability{Type: &csi.GroupControllerServiceCapability_Rpc{
			Rpc: &csi.GroupControllerServiceCapability_RPC{Type: csi.GroupControllerServiceCapability_RPC_Type(number)},
		}}
	})
}

// Node is the answer of NodeGetCapabilities.
func (s Set) Node() []*csi.NodeServiceCapability {
	return advertised(nodeTypes, s.HasNode, func(number int32) *csi.NodeServiceCapability {
		return &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{
			Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_Type(number)},
		}}
	})
}

// advertised returns the capabilities that have a number in types and are in the set.
func advertised[T any](types map[string]int32, has func(Name) bool, capability func(number int32) *T) []*T {
	var all []*T

	for _, each := range entries {
		if number := types[string(each.name)]; number != 0 && has(each.name) {
			all = append(all, capability(number))
		}
	}

	return all
}

// CheckAccessMode refuses, with volume.ErrCapability, the two access modes that
// exist only where SINGLE_NODE_MULTI_WRITER is advertised.
func (s Set) CheckAccessMode(wanted volume.Capability) error {
	mode := wanted.AccessMode()
	if s.Has(SingleNodeMultiWriter) || mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER &&
		mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER {
		return nil
	}

	return fmt.Errorf("%w: access mode %s needs the capability %s, which is not advertised; ask for SINGLE_NODE_WRITER",
		volume.ErrCapability, wanted.Mode, SingleNodeMultiWriter)
}

// CheckMountGroup refuses, with volume.ErrCapability, an invalid group, and any group where
// VOLUME_MOUNT_GROUP is not advertised (CSI v1.13, VolumeCapability.MountVolume).
func (s Set) CheckMountGroup(wanted volume.Capability) error {
	if wanted.MountGroup == "" {
		return nil
	}

	if !s.Has(VolumeMountGroup) {
		return fmt.Errorf("%w: volume_mount_group: VOLUME_MOUNT_GROUP is not advertised; "+
			"leave the group to the CO, or start the driver with --volume-mount-group", volume.ErrCapability)
	}

	_, err := wanted.MountGroupID()

	return err
}

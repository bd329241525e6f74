package harness

import (
	"encoding/base64"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

// DirectKey is "true" in the volume_context of a direct volume.
const DirectKey = "directAssign"

// DirectParameters are those of a direct volume.
func DirectParameters() map[string]string { return map[string]string{DirectKey: "true"} }

// DirectRequest asks for a volume that a virtual machine is to mount.
func DirectRequest(fsType string, flags ...string) *csi.CreateVolumeRequest {
	request := Formatted(fsType, flags...)
	request.Parameters = DirectParameters()

	return request
}

// DirectEntry is the directory by which a runtime knows the claim's target path.
func DirectEntry(d *Driver, claim *csiclient.Publication) string {
	return filepath.Join(d.Config.Node.Direct.Root, base64.URLEncoding.EncodeToString([]byte(claim.TargetPath)))
}

// MountInfoPath is the path of the file that gives the volume to a runtime.
func MountInfoPath(d *Driver, claim *csiclient.Publication) string {
	return filepath.Join(DirectEntry(d, claim), "mountInfo.json")
}

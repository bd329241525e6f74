// Command legacy is a CO's client of before CSI v1.13: it is compiled against
// v1.12, whose VolumeCondition later versions have no more. It asks a driver for
// what it says about the health of volumes and prints that as JSON.
//
// It is a module of its own since both versions of the spec register the same
// messages, so that one process can't have both.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// limit only ends a run that would hang.
const limit = time.Minute

// condition is a VolumeCondition; nil means that the answer has none.
type condition struct {
	Abnormal bool   `json:"abnormal"`
	Message  string `json:"message"`
}

// answers are what the driver says, conditions by volume id.
type answers struct {
	// Controller and Node say whether the service advertises VOLUME_CONDITION.
	Controller bool `json:"controller"`
	Node       bool `json:"node"`
	// Listed, Got and Stats are of ListVolumes, ControllerGetVolume and
	// NodeGetVolumeStats.
	Listed map[string]*condition `json:"listed"`
	Got    map[string]*condition `json:"got"`
	Stats  map[string]*condition `json:"stats"`
}

func main() {
	endpoint := flag.String("endpoint", "", "the driver's socket, as unix:///path")

	flag.Usage = func() {
		_, _ = fmt.Fprintln(flag.CommandLine.Output(), "legacy -endpoint unix:///path VOLUME=PATH…, where PATH is one that the volume is published at")
		flag.PrintDefaults()
	}
	flag.Parse()

	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()

	if err := run(ctx, *endpoint, flag.Args()); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "legacy:", err)

		cancel()
		os.Exit(1) //nolint:gocritic // cancel was called
	}
}

func run(ctx context.Context, endpoint string, volumes []string) error {
	connection, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", endpoint, err)
	}
	defer connection.Close()

	told := answers{Listed: map[string]*condition{}, Got: map[string]*condition{}, Stats: map[string]*condition{}}
	if err := told.ofController(ctx, csi.NewControllerClient(connection)); err != nil {
		return err
	}

	if err := told.ofNode(ctx, csi.NewNodeClient(connection), volumes); err != nil {
		return err
	}

	return json.NewEncoder(os.Stdout).Encode(told)
}

func (a *answers) ofController(ctx context.Context, controller csi.ControllerClient) error {
	capabilities, err := controller.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		return fmt.Errorf("ControllerGetCapabilities: %w", err)
	}

	for _, each := range capabilities.GetCapabilities() {
		a.Controller = a.Controller || each.GetRpc().GetType() == csi.ControllerServiceCapability_RPC_VOLUME_CONDITION
	}

	listed, err := controller.ListVolumes(ctx, &csi.ListVolumesRequest{})
	if err != nil {
		return fmt.Errorf("ListVolumes: %w", err)
	}

	for _, entry := range listed.GetEntries() {
		id := entry.GetVolume().GetVolumeId()
		a.Listed[id] = told(entry.GetStatus().GetVolumeCondition())

		got, err := controller.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
		if err != nil {
			return fmt.Errorf("ControllerGetVolume: %w", err)
		}

		a.Got[id] = told(got.GetStatus().GetVolumeCondition())
	}

	return nil
}

func (a *answers) ofNode(ctx context.Context, node csi.NodeClient, volumes []string) error {
	capabilities, err := node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return fmt.Errorf("NodeGetCapabilities: %w", err)
	}

	for _, each := range capabilities.GetCapabilities() {
		a.Node = a.Node || each.GetRpc().GetType() == csi.NodeServiceCapability_RPC_VOLUME_CONDITION
	}

	for _, volume := range volumes {
		id, path, _ := strings.Cut(volume, "=")

		stats, err := node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
		if err != nil {
			return fmt.Errorf("NodeGetVolumeStats: %w", err)
		}

		a.Stats[id] = told(stats.GetVolumeCondition())
	}

	return nil
}

func told(given *csi.VolumeCondition) *condition {
	if given == nil {
		return nil
	}

	return &condition{Abnormal: given.GetAbnormal(), Message: given.GetMessage()}
}

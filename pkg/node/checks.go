package node

import (
	"context"
	"time"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Checker checks the filesystems of volumes on this node.
func (s *Service) Checker() *fsck.Checker { return s.checker }

// checkedVolumes implements fsck.Volumes.
type checkedVolumes struct{ service *Service }

func (v checkedVolumes) Staged(id string) (*staged.Volume, bool) {
	return v.service.stagedVolumes.Get(id)
}

func (v checkedVolumes) IsRegistered(id string) bool {
	if v.service.config.Registered == nil {
		return false
	}

	_, registered := v.service.config.Registered(id)

	return registered
}

func (v checkedVolumes) IsEphemeral(id string) bool {
	_, ephemeral := v.service.ephemeral.Get(id)

	return ephemeral
}

func (v checkedVolumes) InUse(id string) (string, bool, error) { return v.service.local.InUse(id) }

func (v checkedVolumes) CheckNoGuest(id string) error {
	return v.service.access.CheckNoGuest(&staged.Volume{VolumeID: id})
}

func (v checkedVolumes) ErrorCount(id string) (uint64, error) {
	record, known := v.service.stagedVolumes.Get(id)
	if !known {
		return 0, nil
	}

	root, point, err := v.service.access.OpenRoot(record)
	if err != nil || root == nil {
		return 0, err
	}
	defer root.Close()

	number, isLoop := point.LoopDevice()
	if !isLoop {
		return 0, nil
	}

	counted, err := filesystem.ReadErrors(record.FSType(), number, root)

	return counted.Count, err
}

func (v checkedVolumes) Do(ctx context.Context, id, method string, do func(context.Context) error) error {
	return v.service.own.run(ctx, id, method, do)
}

func (v checkedVolumes) WithFrozen(ctx context.Context, id string, do func(context.Context) error) error {
	return v.service.local.WithFrozen(ctx, []string{id}, do)
}

func (v checkedVolumes) IsFrozen(id string) bool {
	return v.service.freezer.IsFrozen(id)
}

func (v checkedVolumes) CheckReachable(poolName string) error {
	return v.service.prober.CheckReachable(poolName)
}

func (v checkedVolumes) IsHanging(id string) bool {
	record, _ := v.service.prober.Monitor().Get(id)

	return record.Has(health.ProbeTimedOut)
}

func (v checkedVolumes) ProbeAfterOperation(id string) { v.service.prober.ProbeAfterOperation(id) }

func (v checkedVolumes) LastPeriod(id string) time.Duration {
	return v.service.prober.Observations().CheckPeriod(id)
}

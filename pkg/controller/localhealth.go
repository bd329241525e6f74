package controller

import (
	"strings"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// reported returns what the controller's RPCs report of a volume: its own findings,
// and those of the local node that are about the volume. It is nil for a volume without any.
func (w *Watch) reported(id string) *health.Record {
	own, _ := w.Monitor.Answer(id)

	return health.Merge(own, w.node.Condition(id), isAboutVolume)
}

// reportedUnhealthy returns the conditions, as reported does, of all unhealthy volumes
// behind after, ordered by id. A healthy volume costs nothing: both views index the unhealthy
// ones.
func (w *Watch) reportedUnhealthy(after string) []*health.Record {
	own, local := w.Monitor.Abnormal(after), w.node.Unhealthy(after)
	reported := make([]*health.Record, 0, len(own)+len(local))

	for len(own) > 0 && len(local) > 0 {
		switch strings.Compare(own[0].ID, local[0].ID) {
		case -1:
			reported, own = append(reported, own[0]), own[1:]
		case 1:
			reported, local = appendUnhealthy(reported, health.Merge(nil, local[0], isAboutVolume)), local[1:]
		default:
			reported = append(reported, health.Merge(own[0], local[0], isAboutVolume))
			own, local = own[1:], local[1:]
		}
	}

	reported = append(reported, own...)
	for _, record := range local {
		reported = appendUnhealthy(reported, health.Merge(nil, record, isAboutVolume))
	}

	return reported
}

func appendUnhealthy(records []*health.Record, record *health.Record) []*health.Record {
	if record == nil {
		return records
	}

	return append(records, record)
}

// isAboutVolume reports whether a finding of the local node is about the volume and its data,
// wherever it is used. The others are about its use on that node: a mount or a device that
// another program has removed does not keep the volume from being staged again, a staging that
// fails here may succeed on another node, and a CO may take INACCESSIBLE of a controller as inaccessible from all nodes (CSI v1.13,
// VolumeHealthErrorType); a guest that does not report its usage is normal while its pod starts.
func isAboutVolume(entry health.Entry) bool {
	switch entry.Reason {
	case health.VolumeUnmounted, health.DeviceMissing, health.GuestStatsUnavailable, health.StagingFailed:
		return false
	default:
		return true
	}
}

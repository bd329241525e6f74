package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/served"
)

// watchers read the driver's answers in each of the ways in which it gives
// them, without pause, until the context ends.
func (s *soak) watchers() []func(ctx context.Context) {
	const oftenest = 20 * time.Millisecond

	watchers := make([]func(ctx context.Context), 0)

	for _, look := range []func(ctx context.Context) error{s.lookAtReport, s.lookAtController, s.lookAtNode, s.lookAtStorage} {
		watchers = append(watchers, func(ctx context.Context) {
			for ctx.Err() == nil {
				if err := look(ctx); err != nil && ctx.Err() == nil {
					s.troubles.add("watcher", err.Error())
				}

				select {
				case <-ctx.Done():
				case <-time.After(oftenest):
				}
			}
		})
	}

	return watchers
}

// noteCondition also records the operation on the volume when the
// condition was seen first.
func (s *soak) noteCondition(where, subject string, reason health.Reason, message string) {
	s.troubles.addNoted(condition, fmt.Sprintf("%s of %s: %s: %s", where, subject, reason, message), s.volumes.what(subject))
}

// lookAtReport also reads what has come and gone since it was read last.
func (s *soak) lookAtReport(ctx context.Context) error {
	report, err := s.report(ctx)
	if err != nil {
		return err
	}

	for _, storage := range report.Storage {
		for _, each := range storage.Conditions {
			s.noteCondition("report, "+each.View, storage.Name, each.Reason, each.Message)
		}
	}

	for _, volume := range report.Volumes {
		for _, each := range volume.Conditions {
			s.noteCondition("report, "+each.View, volume.ID, each.Reason, each.Message)
		}
	}

	for _, each := range report.Changes {
		if !each.Cleared {
			s.noteCondition("history, "+each.View, each.Subject, each.Reason, each.Message)
		}
	}

	return nil
}

func (s *soak) report(ctx context.Context) (*health.Report, error) {
	text, err := served.Get(ctx, s.http, "/health.json")
	if err != nil {
		return nil, err
	}

	report := &health.Report{}
	if err := json.Unmarshal([]byte(text), report); err != nil {
		return nil, fmt.Errorf("read the report: %w", err)
	}

	return report, nil
}

func (s *soak) lookAtController(ctx context.Context) error {
	const page = 100

	for token := ""; ; {
		answer, err := s.ControllerListVolumeHealth(ctx, &csi.ControllerListVolumeHealthRequest{MaxEntries: page, StartingToken: token})
		if err != nil {
			return err
		}

		for _, volume := range answer.GetEntries() {
			s.noteEntries("controller", volume)
		}

		if token = answer.GetNextToken(); token == "" {
			return nil
		}
	}
}

func (s *soak) lookAtNode(ctx context.Context) error {
	for _, id := range s.volumes.ids() {
		began := time.Now()
		answer, err := s.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: id})
		s.answers.add(time.Since(began))

		// It is deleted by and by.
		if status.Code(err) == codes.NotFound {
			continue
		}

		if err != nil {
			return err
		}

		s.noteEntries("node", answer.GetVolumeHealth())
	}

	return nil
}

func (s *soak) noteEntries(where string, volume *csi.VolumeHealth) {
	for _, each := range volume.GetHealthStatuses() {
		s.noteCondition(where, volume.GetVolumeId(), health.Reason(each.GetReason()), each.GetMessage())
	}
}

func (s *soak) lookAtStorage(ctx context.Context) error {
	answer, err := s.NodeGetStorageHealth(ctx, &csi.NodeGetStorageHealthRequest{})
	if err != nil {
		return err
	}

	for _, each := range answer.GetBackendHealth() {
		s.noteCondition("node", "storage", health.Reason(each.GetReason()), each.GetMessage())
	}

	return nil
}

// wasChecked notes if a volume that has been there for long enough was not
// checked of the driver's own accord.
func (l *life) wasChecked(ctx context.Context) error {
	const enough = 3

	if !l.kind.checkable() || time.Since(l.began) < enough*l.checkPeriod {
		return nil
	}

	report, err := l.report(ctx)
	if err != nil {
		return err
	}

	at := slices.IndexFunc(report.Volumes, func(each health.VolumeReport) bool { return each.ID == l.claim.VolumeID })
	if at < 0 {
		l.troubles.add("schedule", l.name+" is not in the report")

		return nil
	}

	check := report.Volumes[at].Check
	if check == nil || check.How != "online" || check.Verdict != "clean" || time.Since(check.CleanAt) > enough*l.checkPeriod {
		l.troubles.add("schedule", fmt.Sprintf("%s was not checked each %s, but: %+v", l.name, l.checkPeriod, check))
	}

	return nil
}

package ctl

import (
	"cmp"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// The remedies of the driver's messages, which are for orchestrators.
var (
	publishAgain = regexp.MustCompile(`(restart its pod|stage it again|stage or publish it again): \S+` +
		`|unpublish and unstage it, then stage it again|unstage it and stage it again`)
	unpublishFirst = regexp.MustCompile(`unpublish it( there)? first|unpublish and unstage it first`)
)

// forPeople returns a driver's message with commands in place of its remedies, for a volume that the mount
// command has staged. What an orchestrator has published is not to be unmounted by hand.
func forPeople(known health.VolumeReport, message string) string {
	if !mountedByHand(known) {
		return message
	}

	message = publishAgain.ReplaceAllLiteralString(message, mountAgain(known))

	return unpublishFirst.ReplaceAllLiteralString(message, umountCommand(known))
}

// mountedByHand reports whether the mount command has staged the volume.
func mountedByHand(known health.VolumeReport) bool {
	return strings.HasPrefix(filepath.Base(known.Staged), stagingPrefix)
}

func umountCommand(known health.VolumeReport) string {
	return "touchstone ctl volume umount " + cmp.Or(known.Name, known.ID)
}

// mountAgain returns the commands that stage the volume again, with others while it is not staged.
func mountAgain(known health.VolumeReport, meanwhile ...string) string {
	command := strings.Join(append([]string{umountCommand(known)}, meanwhile...), " && ")
	if len(known.Published) == 0 {
		return command
	}

	command += " && touchstone ctl volume mount " + cmp.Or(known.Name, known.ID) + " " + known.Published[0]

	if mode := known.AccessMode; mode != "" && mode != defaultMode.String() {
		command += " --access-mode " + mode
	}

	return command
}

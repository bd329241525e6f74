package demo

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
)

// A step is a command and what it must do.
type step struct {
	// command is a line of sh. In it touchstone is this program, $K the directory in which volumes may
	// be mounted, and the working directory the demo's own.
	command string
	// prints is a regular expression that the output must match.
	prints string
	// same means that it must print what the step before it has printed, and fails that it is refused.
	same, fails bool
	// do is what the demo does by itself, if it is no command, and returns what it prints.
	do func(d *demo, ctx context.Context) (string, error)
}

type section struct {
	title string
	steps []step
}

// raw is the kind without a filesystem.
const raw = "raw"

// A kind is a kind of volume, with the flags by which it is created. The sizes are close to the
// minimum of each filesystem; all are thin.
type kind struct {
	name, flags string
	// size is what it is created with and grown what it is expanded to, in MiB.
	size, grown int
	// mounted is what the kernel's mount table says of it.
	mounted string
}

var kinds = []kind{
	{"ext4", "--fs ext4", 64, 128, "ext4 rw"},
	{"xfs", "--fs xfs", 300, 400, "xfs rw"},
	{raw, "--block", 64, 128, "devtmpfs|tmpfs"},
	{"directory", "--param backing=directory", 64, 128, "rw"},
	{"btrfs", "--fs btrfs", 256, 512, "btrfs rw"},
}

// started are the steps of a start.
var started = []step{
	{command: "touchstone serve --mode all …", do: (*demo).startDriver},
	{command: "touchstone ctl capabilities | head -2", prints: `identity .* ready`},
}

// sections returns the whole demo in order. btrfs is false where the kernel or the tools lack it.
func sections(btrfs bool) []section {
	var used []kind

	for _, each := range kinds {
		if each.name != "btrfs" || btrfs {
			used = append(used, each)
		}
	}

	all := []section{{"The driver starts", append(slices.Clip(started),
		step{command: "touchstone ctl node info", prints: `Node ID: +` + nodeID},
		step{command: "touchstone ctl capacity", prints: `Available: +3\.`},
	)}}

	for _, each := range used {
		all = append(all, section{"The " + each.name + " volume is created, used and expanded", each.use()})
	}

	all = append(all, copies...)

	names := []string{"restored", "cloned", "regrouped"}
	for _, each := range used {
		names = append(names, each.name)
	}

	all = append(all, section{"The driver is killed, and starts again", restart(names)})

	for _, name := range names {
		all = append(all, section{"The " + name + " volume is deleted", remove(name)})
	}

	return append(all, ending...)
}

// sums are the files with the checksums of copies that were not written to since.
var sums = map[string]string{"restored": "before", "regrouped": "ext4"}

// write writes data into a volume.
func write(name string) step {
	return step{
		command: fmt.Sprintf("head -c 4M /dev/urandom | tee %[1]s | sha256sum | tee %[2]s.sum && sync %[1]s", dataOf(name), name),
		prints:  `^[0-9a-f]{64}`,
	}
}

// read compares a volume's data with what was written, to it or to the volume that it is a copy of.
func read(name, as string) step {
	return step{command: fmt.Sprintf("head -c 4M %s | sha256sum | diff - %s.sum && echo as written", dataOf(name), as), prints: `^as written`}
}

// dataOf is the file of a volume with its data: the device if it is one.
func dataOf(name string) string {
	if name == raw {
		return "$K/raw"
	}

	return "$K/" + name + "/data"
}

// use are the steps from the volume's creation to its expansion.
func (k kind) use() []step {
	create := step{
		command: fmt.Sprintf("touchstone ctl volume create %s --size %dMi %s", k.name, k.size, k.flags),
		prints:  fmt.Sprintf(`Volume ID: +[0-9a-f-]{36}\nCapacity: +%d MiB`, k.size),
	}
	another := step{
		command: fmt.Sprintf("touchstone ctl volume create %s --size 1Gi %s", k.name, k.flags), prints: "ALREADY_EXISTS", fails: true,
	}
	mount := fmt.Sprintf("touchstone ctl volume mount %[1]s $K/%[1]s", k.name)
	grown := fmt.Sprintf("touchstone ctl volume expand %s --size %dMi", k.name, k.grown)

	if k.name == raw {
		mount += " --block"
	}

	steps := []step{
		create,
		{command: create.command, same: true},
		another,
		{command: mount, prints: k.name + ` is mounted at`},
		{command: mount, prints: "already"},
		{command: fmt.Sprintf("grep $K/%s /proc/mounts", k.name), prints: k.mounted},
		write(k.name),
		{command: "touchstone ctl volume stats " + k.name, prints: `BYTES`},
	}

	if k.name == "ext4" {
		// A process without CAP_SYS_RESOURCE, as in many containers, may not grow a mounted ext4. Then
		// the command prints what to do: the next staging grows it.
		grown = fmt.Sprintf("%s || { touchstone ctl volume umount %[2]s && %[3]s; }", grown, k.name, mount)
	}

	return append(steps,
		step{command: grown, prints: `done|not needed|is mounted`},
		step{command: "touchstone ctl volume list", prints: fmt.Sprintf(`(?m)^%s .*%d MiB.*HEALTHY`, k.name, k.grown)},
		read(k.name, k.name))
}

var copies = []section{
	{"Snapshots of the xfs volume, while it is mounted", []step{
		{command: "cp xfs.sum before.sum"},
		{command: "touchstone ctl snapshot create xfs before", prints: `Ready to use: +true`},
		{command: "touchstone ctl snapshot create xfs before", same: true},
		write("xfs"),
		{command: "touchstone ctl snapshot create xfs after", prints: `Ready to use: +true`},
		{command: "touchstone ctl snapshot list", prints: `(?s)before .*xfs.*after .*xfs`},
		{command: "touchstone ctl snapshot blocks after --since before", prints: `OFFSET +LENGTH\n\d`},
	}},
	{"The first snapshot becomes a larger volume, beside its source", []step{
		{command: "touchstone ctl volume create restored --size 500Mi --fs xfs --from-snapshot before", prints: `Capacity: +500 MiB`},
		{command: "touchstone ctl volume mount restored $K/restored", prints: "restored is mounted"},
		read("restored", "before"),
		read("xfs", "xfs"),
		{command: "touchstone ctl volume stats restored", prints: `BYTES +4\d\d MiB`},
	}},
	{"A clone of the mounted volume", []step{
		{command: "touchstone ctl volume create cloned --size 400Mi --fs xfs --from-volume xfs", prints: `Capacity: +400 MiB`},
		{command: "touchstone ctl volume mount cloned $K/cloned", prints: "cloned is mounted"},
		read("cloned", "xfs"),
		write("cloned"),
		read("xfs", "xfs"),
	}},
	{"A group snapshot of two mounted volumes", []step{
		{command: "touchstone ctl group create xfs ext4 together", prints: `Ready to use: +true`},
		{command: "touchstone ctl group create xfs ext4 together", same: true},
		{command: "touchstone ctl group get together", prints: `(?s)true.*(128 MiB.*400 MiB|400 MiB.*128 MiB)`},
		{command: "touchstone ctl snapshot delete $(" + memberOf("ext4") + ")", prints: "INVALID_ARGUMENT", fails: true},
		{command: "touchstone ctl volume create regrouped --size 128Mi --fs ext4 --from-snapshot $(" + memberOf("ext4") + ")", prints: `128 MiB`},
		{command: "touchstone ctl volume mount regrouped $K/regrouped", prints: "regrouped is mounted"},
		read("regrouped", "ext4"),
	}},
}

// memberOf prints the id of the volume's snapshot in the group.
func memberOf(name string) string {
	return "touchstone ctl snapshot list --volume " + name + " -o name | tail -1"
}

// restart are the steps of a kill, after which each volume is as it was.
func restart(names []string) []step {
	steps := []step{{command: "kill -9 $DRIVER", do: (*demo).killDriver}}
	for _, name := range names {
		steps = append(steps, read(name, cmp.Or(sums[name], name)))
	}

	return append(append(steps, started...), step{
		command: "touchstone ctl volume list --max-entries 2", prints: fmt.Sprintf(`^NAME.*\n(.*HEALTHY *\n){%d}$`, len(names)),
	})
}

// remove are the steps from the driver's restart to the deletion: the calls in effect are repeated first,
// as an orchestrator does that does not know their outcome.
func remove(name string) []step {
	mount := fmt.Sprintf("touchstone ctl volume mount %[1]s $K/%[1]s", name)
	if name == raw {
		mount += " --block"
	}

	return []step{
		{command: mount, prints: "already"},
		read(name, cmp.Or(sums[name], name)),
		{command: "touchstone ctl volume umount " + name, prints: "is unmounted"},
		{command: "touchstone ctl volume delete " + name, prints: "deleted " + name},
		{command: "touchstone ctl volume delete --ignore-not-found " + name},
	}
}

// methods are the RPCs of which the driver must have recorded a call.
var methods = []string{
	"ControllerExpandVolume", "ControllerPublishVolume", "ControllerUnpublishVolume", "CreateSnapshot", "CreateVolume",
	"CreateVolumeGroupSnapshot", "DeleteSnapshot", "DeleteVolume", "DeleteVolumeGroupSnapshot", "GetMetadataAllocated",
	"GetMetadataDelta", "GetVolumeGroupSnapshot", "ListSnapshots", "ListVolumes", "NodeExpandVolume", "NodeGetVolumeStats",
	"NodePublishVolume", "NodeStageVolume", "NodeUnpublishVolume", "NodeUnstageVolume",
}

// ending are the sections after the last volume.
var ending = []section{
	{"The snapshots outlive their volumes", []step{
		{command: "touchstone ctl snapshot blocks before", prints: `OFFSET +LENGTH\n\d`},
		{command: "touchstone ctl snapshot delete before after", prints: "(?s)deleted before.*deleted after"},
		{command: "touchstone ctl snapshot delete --ignore-not-found before"},
		{command: "touchstone ctl group delete together", prints: "deleted together"},
	}},
	{"The calls were recorded", []step{
		{command: `sed 's|.*"method":"[^"]*/\([A-Za-z]*\)".*|\1|' calls.log | sort -u`, prints: `(?s)` + strings.Join(methods, ".*")},
	}},
	{"Nothing is left", []step{
		{command: "touchstone ctl volume list -o name | wc -l", prints: "^0"},
		{command: "touchstone ctl snapshot list -o name | wc -l", prints: "^0"},
		// Before the driver ends: it keeps an embedded pool mounted.
		{command: "files in the pool", do: noneLeft("file", volumeFilesBelow, "pool")},
		{command: "kill $DRIVER", do: (*demo).stopDriver},
		{command: "mounts", do: noneLeft("mount", mountsBelow, "")},
		{command: "loop devices", do: noneLeft("loop device", loopsBelow, "")},
	}},
}

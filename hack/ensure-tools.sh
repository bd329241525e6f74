#!/usr/bin/env bash
# Makes sure that the programs a make target needs are there. As root on Debian
# or Ubuntu it installs what is missing; elsewhere it says what that is and
# exits 2, so that nothing fails half way with "command not found".
#
#   hack/ensure-tools.sh [--for test|bench|page|alerts|demo|vm|lint|build]
set -euo pipefail

purpose=build
while (($#)); do
	case $1 in
	--for)
		purpose=${2:?--for needs one of build, test, bench, page, alerts, demo, vm, lint}
		shift 2
		;;
	-h | --help)
		sed -n '2,6s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	*)
		echo "ensure-tools: unknown argument $1" >&2
		exit 2
		;;
	esac
done

# Where Debian keeps mkfs and its kin, which an unprivileged PATH leaves out.
PATH=$PATH:/usr/sbin:/sbin:/usr/local/go/bin

# program:package
filesystems=(
	mkfs.ext4:e2fsprogs e2fsck:e2fsprogs e2image:e2fsprogs resize2fs:e2fsprogs tune2fs:e2fsprogs
	mkfs.xfs:xfsprogs xfs_repair:xfsprogs xfs_db:xfsprogs xfs_logprint:xfsprogs xfs_metadump:xfsprogs xfs_mdrestore:xfsprogs
	mkfs.btrfs:btrfs-progs btrfs:btrfs-progs btrfstune:btrfs-progs
	mount:mount losetup:mount
)
case $purpose in
build) wanted=(git:git) ;;
lint) wanted=(git:git shellcheck:shellcheck) ;;
demo) wanted=(git:git "${filesystems[@]}") ;;
# What the tests look with, and what the scripts in examples/ want.
test) wanted=(git:git "${filesystems[@]}" debugfs:e2fsprogs filefrag:e2fsprogs xfs_io:xfsprogs blkid:util-linux findmnt:util-linux jq:jq) ;;
bench) wanted=(git:git "${filesystems[@]}" fio:fio) ;;
# 360 MB, so not for every test.
page) wanted=(git:git chromium:chromium) ;;
alerts) wanted=(git:git promtool:prometheus) ;;
# The VM's kernel, busybox and tools are unpacked by hack/test-vm.sh, not
# installed: only what runs on this machine is asked for here.
vm) wanted=(qemu-system-x86_64:qemu-system-x86 cpio:cpio dpkg-deb:dpkg secilc:secilc "${filesystems[@]}") ;;
*)
	echo "ensure-tools: --for $purpose: not one of build, test, bench, page, alerts, demo, vm, lint" >&2
	exit 2
	;;
esac

# Prints the packages of the programs that are missing, each once.
missing() {
	local pair
	for pair in "${wanted[@]}"; do
		command -v "${pair%%:*}" >/dev/null || echo "${pair#*:}"
	done | sort -u
}

if ! command -v go >/dev/null; then
	echo "ensure-tools: go is missing: install Go $(sed -n 's/^go //p' "$(dirname "$0")/../go.mod") or newer from https://go.dev/dl/" >&2
	exit 2
fi

mapfile -t packages < <(missing)
((${#packages[@]})) || exit 0

if [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
	echo "ensure-tools: installing ${packages[*]}" >&2
	export DEBIAN_FRONTEND=noninteractive
	# Lists may be absent (a fresh container) or old: update, then install.
	apt-get update -qq >&2 || echo "ensure-tools: apt-get update failed, trying with the lists that are there" >&2
	apt-get install -y -qq --no-install-recommends "${packages[@]}" >&2 || true
	mapfile -t packages < <(missing)
fi

if ((${#packages[@]})); then
	echo "ensure-tools: missing for '$purpose': ${packages[*]}" >&2
	echo "ensure-tools: install these packages (Debian names), for example: sudo apt-get install ${packages[*]}" >&2
	exit 2
fi

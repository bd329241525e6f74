#!/usr/bin/env bash
# Runs the tests of test/vm on Debian's kernel inside qemu: for what the kernel
# of a build machine or container may not allow (docs/test-vm.md).
#
#   hack/test-vm.sh [flags of the test binary, for example -test.run Grow]
#
# Exit code: 0 the tests passed, 1 they did not or gave no verdict in time,
# 2 something that is needed is missing.
#
#   TOUCHSTONE_VM_MINUTES     how long the machine may run (15)
#   TOUCHSTONE_VM_MEMORY      its memory in MiB (1024)
#   TOUCHSTONE_VM_PROCESSORS  how many it has (1)
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin:/usr/local/go/bin
cd "$(dirname "$0")/.."
cache=$PWD/out/vm
# There once a machine was ended because it hung.
hung=$cache/hung
# What the guest says every half minute, and for how many seconds it may fail to.
alive='== alive'
# The disk that a reboot keeps.
kept=$cache/kept.img
wait_limit=180
minutes=${TOUCHSTONE_VM_MINUTES:-15}
memory=${TOUCHSTONE_VM_MEMORY:-1024}
processors=${TOUCHSTONE_VM_PROCESSORS:-1}

# What the guest can modprobe; dependencies come along. Only the first line is
# loaded at boot: a test that needs one of the others loads it itself.
boot_modules=(virtio_pci virtio_blk virtio_rng crc32c_generic crc32c_intel loop ext4 xfs btrfs)
more_modules=(virtio_console fuse nbd null_blk scsi_debug quota_v2
	dm_mod dm_flakey dm_log_writes dm_delay dm_crypt dm_thin_pool
	veth nfsd nfsv4)

# What the driver and the tests execute. Each comes with its libraries.
tools=(mke2fs mkfs.ext4 e2fsck fsck.ext4 resize2fs tune2fs dumpe2fs debugfs e2image
	mkfs.xfs xfs_repair xfs_logprint xfs_db xfs_io mkfs.btrfs btrfs btrfstune ip)

# program:package, installed on this machine where missing.
needed=(qemu-system-x86_64:qemu-system-x86 cpio:cpio depmod:kmod xz:xz-utils dpkg-deb:dpkg flock:util-linux
	mke2fs:e2fsprogs mkfs.xfs:xfsprogs btrfs:btrfs-progs ip:iproute2 secilc:secilc)

say() { echo "test-vm: $*" >&2; }

cannot() {
	say "$*"
	exit 2
}

# Prints the packages of the programs that are missing, each once.
missing_packages() {
	local pair
	for pair in "${needed[@]}"; do
		command -v "${pair%%:*}" >/dev/null || echo "${pair#*:}"
	done | sort -u
}

ensure_host() {
	[[ $(uname -m) == x86_64 ]] || cannot "this needs an x86_64 machine with Debian; this one is $(uname -m)"
	command -v apt-get >/dev/null || cannot "apt-get is missing: the guest's kernel and busybox are Debian packages"
	command -v go >/dev/null || cannot "go is missing: install it from https://go.dev/dl/"

	local packages
	mapfile -t packages < <(missing_packages)
	((${#packages[@]})) || return 0
	[[ $(id -u) -eq 0 ]] || cannot "missing packages: ${packages[*]}; install them: sudo apt-get install ${packages[*]}"

	say "installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	install_packages "${packages[@]}" || { update_lists && install_packages "${packages[@]}"; } || true
	mapfile -t packages < <(missing_packages)
	((${#packages[@]} == 0)) || cannot "apt-get could not install ${packages[*]}"
}

install_packages() { apt-get install -y -qq --no-install-recommends "$@" >&2; }

# At most once a run: it is slow, and without root or network it cannot help.
lists_updated=
update_lists() {
	[[ -z $lists_updated && $(id -u) -eq 0 ]] || return 1
	lists_updated=yes
	say "apt-get update"
	apt-get update -qq >&2
}

# The name of the package that the metapackage linux-image-amd64 stands for today.
kernel_package() {
	apt-cache depends linux-image-amd64 2>/dev/null | awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9].*-amd64$/ { print $2; exit }'
}

# download PACKAGE PATTERN: prints the path of its current .deb in the cache,
# fetching it when it is not there. Offline, the newest cached one that matches
# PATTERN must do.
download() {
	local package=$1 pattern=$2 file=
	[[ -z $package ]] || file=$(deb_name "$package")
	if [[ -n $file && ! -s $cache/debs/$file ]]; then
		say "downloading $file"
		fetch_deb "$package" || { update_lists && file=$(deb_name "$package") && fetch_deb "$package"; } || file=
	fi
	if [[ -z $file ]]; then
		# shellcheck disable=SC2012,SC2086 # names are apt's own; PATTERN is meant to expand
		file=$(cd "$cache/debs" && ls -t -- $pattern 2>/dev/null | head -n1)
		[[ -n $file ]] || cannot "cannot download ${package:-linux-image-amd64} with apt-get (as root, try apt-get update) and $cache/debs has none"
		say "using the cached $file"
	fi
	echo "$cache/debs/$file"
}

deb_name() { apt-get download --print-uris "$1" 2>/dev/null | awk '{ print $2; exit }'; }

# Into a directory of its own first, so that a killed run leaves no half .deb.
fetch_deb() {
	rm -rf "$cache/debs/partial" && mkdir -p "$cache/debs/partial"
	(cd "$cache/debs/partial" && apt-get download -qq -o APT::Sandbox::User=root "$1" >&2) || return 1
	mv "$cache"/debs/partial/*.deb "$cache/debs/"
}

# add_tool ROOT PROGRAM: the program and its shared libraries, at the same paths as here.
add_tool() {
	local root=$1 path library
	path=$(command -v "$2") || cannot "$2 is missing though its package is installed"
	install -D "$path" "$root/usr/sbin/${path##*/}"
	# A static program has none; ldd then prints no path.
	while read -r library; do
		[[ -e $root$library ]] || { mkdir -p "$root${library%/*}" && cp -L "$library" "$root$library"; }
	done < <(ldd "$path" 2>/dev/null | grep -o '/[^ ]*' || true)
}

# add_modules ROOT UNPACKED VERSION: the chosen modules with all that they depend
# on, uncompressed, because not every busybox can load compressed ones.
add_modules() {
	local root=$1 unpacked=$2 version=$3 module file target
	depmod -b "$unpacked" "$version"
	for module in "${boot_modules[@]}" "${more_modules[@]}"; do
		modprobe -q -d "$unpacked" -S "$version" --show-depends "$module" ||
			say "$module is not a module of this kernel: left out"
	done | awk '$1 == "insmod" { print $2 }' | sort -u | while read -r file; do
		target=$root/usr/lib/modules/$version/${file#*"/modules/$version/"}
		mkdir -p "${target%/*}"
		case $file in
		*.xz) xz -dc "$file" >"${target%.xz}" ;;
		*.zst) zstd -qdc "$file" >"${target%.zst}" ;;
		*) cp "$file" "$target" ;;
		esac
	done
	cp "$unpacked/lib/modules/$version"/modules.{builtin,builtin.modinfo,order} "$root/usr/lib/modules/$version/"
	depmod -b "$root" "$version"
}

# Everything in the guest that does not change with the sources: kernel, modules,
# busybox, tools. Built again when one of the packages or this script changes.
build_base() {
	local kernel_deb busybox_deb key work version
	mkdir -p "$cache/debs"
	[[ -n $(kernel_package) ]] || update_lists || true
	kernel_deb=$(download "$(kernel_package)" 'linux-image-*.deb')
	busybox_deb=$(download busybox-static 'busybox-static_*.deb')
	key=$({
		echo "${kernel_deb##*/} ${busybox_deb##*/}"
		dpkg-query -W e2fsprogs xfsprogs btrfs-progs iproute2 libc6
		cat hack/test-vm.sh
	} | sha256sum | cut -c1-16)
	base=$cache/base-$key
	[[ ! -d $base ]] || return 0

	say "building the guest from ${kernel_deb##*/}, ${busybox_deb##*/} and this machine's tools"
	work=$cache/building
	rm -rf "$work" "$cache"/base-*
	mkdir -p "$work"/{result,kernel,busybox} "$work/root"/{dev,etc,proc,sys,tmp,run,mnt,vm,var/lib,usr/{bin,sbin,lib/busybox,lib64}}
	ln -s usr/bin usr/sbin usr/lib usr/lib64 "$work/root/"

	dpkg-deb -x "$kernel_deb" "$work/kernel"
	# Newer releases ship /usr/lib/modules; depmod and modprobe look below /lib.
	[[ -d $work/kernel/lib/modules ]] || ln -sT usr/lib "$work/kernel/lib"
	version=$(ls "$work/kernel/lib/modules")
	cp "$work/kernel/boot/vmlinuz-$version" "$work/result/vmlinuz"
	add_modules "$work/root" "$work/kernel" "$version"

	dpkg-deb -x "$busybox_deb" "$work/busybox"
	find "$work/busybox" -path '*/bin/busybox' -exec install -m 755 {} "$work/root/usr/bin/" \;
	# The kernel calls /sbin/modprobe; /init needs /bin/sh before links exist.
	ln -s busybox "$work/root/usr/bin/sh"
	ln -s ../bin/busybox "$work/root/usr/sbin/modprobe"

	local tool
	for tool in "${tools[@]}"; do add_tool "$work/root" "$tool"; done
	cp /etc/mke2fs.conf "$work/root/etc/"
	echo root:x:0:0:root:/:/bin/sh >"$work/root/etc/passwd"
	ln -s /proc/self/mounts "$work/root/etc/mtab"

	pack "$work/root" "$work/result/initrd"
	mv "$work/result" "$base"
	rm -rf "$work"
	prune_debs "$kernel_deb" "$busybox_deb"
}

# Keeps the packages in use and drops the versions before them.
prune_debs() {
	local deb
	for deb in "$cache"/debs/*.deb; do
		[[ $deb == "$1" || $deb == "$2" ]] || rm -f "$deb"
	done
}

# pack DIRECTORY ARCHIVE: an initramfs; not compressed, since the emulated
# processor would take longer to unpack it than qemu takes to copy it.
pack() { (cd "$1" && find . -mindepth 1 | sort | cpio --quiet -o -H newc -R 0:0) >"$2"; }

# The part that changes with the sources: driver, tests and the script that runs them.
build_payload() {
	local work=$cache/payload
	rm -rf "$work" && mkdir -p "$work/vm"
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$work/vm/touchstone" ./cmd/touchstone
	CGO_ENABLED=0 go test -c -trimpath -ldflags '-s -w' -o "$work/vm/test" ./test/vm
	printf '%s\n' "$@" >"$work/vm/arguments"
	cp examples/one-machine.md deploy/systemd/config.yaml "$work/vm/"
	# Version 31 is what Linux 4.13 and all later ones load.
	secilc --policyvers=31 --output="$work/vm/policy" --filecontext=/dev/null test/vm/selinux.cil
	guest_init >"$work/init"
	chmod 755 "$work/init"
	pack "$work" "$cache/payload.initrd"
	cat "$base/initrd" "$cache/payload.initrd" >"$cache/initrd"
	rm -rf "$work" "$cache/payload.initrd"
}

# The guest's process 1. Should it die, the kernel panics, qemu ends and no
# verdict was given: that is a failure too.
guest_init() {
	sed "s/@modules@/${boot_modules[*]}/; s/@alive@/$alive/" <<'INIT'
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/usr/lib/busybox HOME=/ TMPDIR=/tmp
/usr/bin/busybox --install -s /usr/lib/busybox
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t selinuxfs selinux /sys/fs/selinux
mount -t tracefs tracing /sys/kernel/tracing
# As systemd leaves it on a node.
mount --make-rshared /
for module in @modules@; do modprobe "$module"; done
hostname vm
nonce=$(sed -n 's/.*touchstone\.nonce=\([^ ]*\).*/\1/p' /proc/cmdline)
boot=$(sed -n 's/.*touchstone\.boot=\([^ ]*\).*/\1/p' /proc/cmdline)
for _ in $(seq 500); do [ -b /dev/vda ] && break; usleep 10000; done

while :; do echo "@alive@" && sleep 30; done &
set -f
echo "== $(uname -srv), $(nproc) processors, up for $(cut -d' ' -f1 /proc/uptime) s"
# After the reboot the rest of the test that has asked for it runs.
arguments=$(cat /vm/arguments)
[ "$boot" = 1 ] || arguments="-test.run ^TestOneMachine$"
TOUCHSTONE_VM=1 TOUCHSTONE_VM_BOOT=$boot TOUCHSTONE_VM_DISK=/dev/vda TOUCHSTONE_VM_KEPT_DISK=/dev/vdb TOUCHSTONE_BINARY=/vm/touchstone \
	/vm/test -test.v -test.failfast=false $arguments
code=$?
[ $code -eq 0 ] || { echo "== the guest's kernel said:"; dmesg | tail -n 60; }
[ $code -ne 0 ] || [ ! -e /run/reboot ] || code=reboot
sync
echo "touchstone-vm-verdict $nonce $code"
poweroff -f
INIT
}

# Runs the machine, shows its console as it goes and leaves it in console.log.
# qemu ends by itself when the guest powers off, or by timeout's hand.
run_guest() {
	local console=$cache/console.log disk=$cache/disk.img
	: >"$console"
	rm -f "$disk" && truncate -s 12G "$disk"
	# KVM is never asked for: where its device exists, it may still hang. On a
	# busy host the timer's self-test at boot can fail: no_timer_check.
	timeout --kill-after=10 "${minutes}m" qemu-system-x86_64 \
		-accel tcg,thread=multi -cpu Westmere,+rdrand -smp "$processors" -m "$memory" \
		-display none -monitor none -serial stdio -no-reboot -net none \
		-device virtio-rng-pci \
		-drive "file=$disk,if=virtio,format=raw,cache=unsafe,discard=unmap" \
		-drive "file=$kept,if=virtio,format=raw,cache=unsafe,discard=unmap" \
		-kernel "$base/vmlinuz" -initrd "$cache/initrd" \
		-append "console=ttyS0 panic=-1 quiet no_timer_check mitigations=off security=selinux touchstone.nonce=$1 touchstone.boot=$2" \
		</dev/null >"$console" 2>&1 &
	local guest=$!
	end_when_hung "$guest" "$console" &
	local watcher=$!
	# shellcheck disable=SC2064 # this run's pid, now
	trap "kill $guest 2>/dev/null || true; rm -f '$disk' '$kept'" EXIT
	trap 'exit 1' INT TERM HUP
	tail -n +1 -f --pid="$guest" "$console" | sed -u "s/\r//g; /^$alive/d" &
	local code=0
	wait "$guest" || code=$?
	wait $! "$watcher" || true
	trap - EXIT INT TERM HUP
	rm -f "$disk"
	((code != 124 && code != 137)) || say "the machine was ended after $minutes minutes (TOUCHSTONE_VM_MINUTES)"
}

# end_when_hung GUEST CONSOLE: a machine that gives no sign of life for minutes
# is ended, and $hung is there. The tests have no part in the signs, so one that
# waits for ever is not taken for this.
end_when_hung() {
	tail -n +1 -f --pid="$1" "$2" | grep --line-buffered "$alive" | {
		local code=0
		while ((code == 0)); do read -r -t "$wait_limit" || code=$?; done
		# Greater than 128: nothing came; 1: the machine has ended.
		((code <= 128)) || { touch "$hung" && kill "$1"; }
	}
}

# boot NUMBER: leaves in $verdict what the tests ended with; empty: the machine gave none. The second boot is
# the one after the reboot.
boot() {
	[[ $1 != 1 ]] || { rm -f "$kept" && truncate -s 12G "$kept"; }
	local nonce
	nonce=$(od -An -N8 -tx8 /dev/urandom | tr -d ' ')
	rm -f "$hung"
	say "booting (log: out/vm/console.log)"
	run_guest "$nonce" "$1"
	verdict=$(tr -d '\r' <"$cache/console.log" | sed -n "s/^touchstone-vm-verdict $nonce \([0-9a-z]*\)$/\1/p")
}

# boot_all: boot, and once more if the tests have asked for a reboot.
boot_all() {
	boot 1
	[[ $verdict != reboot ]] || boot 2
	rm -f "$kept"
}

main() {
	ensure_host
	mkdir -p "$cache"
	exec 9>"$cache/lock"
	flock -n 9 || { say "waiting for another run in $cache" && flock 9; }
	build_base
	build_payload "$@"

	local started=$SECONDS verdict
	boot_all
	# A machine that hangs has said nothing of the driver. Not so one that ended
	# otherwise, and not a second one: that would be a pattern.
	if [[ -z $verdict && -e $hung ]]; then
		mv "$cache/console.log" "$cache/console-hung.log"
		say "the machine hung (log: out/vm/console-hung.log); it is started once more"
		boot_all
	fi
	if [[ $verdict == 0 ]]; then
		say "PASS in $((SECONDS - started)) s"
		exit 0
	fi
	say "the last lines of out/vm/console.log:"
	tail -n 40 "$cache/console.log" >&2
	local reason="no verdict from the machine"
	[[ -z $verdict ]] || reason="the tests ended with code $verdict"
	say "FAIL in $((SECONDS - started)) s: $reason"
	exit 1
}

main "$@"

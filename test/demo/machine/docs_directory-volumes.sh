# shellcheck shell=bash
# The pool's filesystem has no quotas, and is what the driver takes for that of the system.
truncate -s 512M /disk/btrfs
mkfs.btrfs -q /disk/btrfs
mkdir -p /path/of/the/pool
mount -o loop /disk/btrfs /path/of/the/pool
fails "quotas not enabled" btrfs qgroup show /path/of/the/pool
block 1
touchstone serve --state-dir /disk/state --pool default=/path/of/the/pool 2>/run/log &
touchstone ctl volume create data --size 64Mi --param backing=directory --wait 10s -o json | jq -e '.volume.volume_context.sizeLimit == "quota"'

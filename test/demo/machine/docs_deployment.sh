# shellcheck shell=bash
on_disk /var/lib/touchstone
on_disk /srv/pool
block 1 &
touchstone ctl volume create data --size 64Mi --wait 10s
block 2 &
touchstone ctl volume create other --size 64Mi --wait 10s --endpoint unix:///run/touchstone/controller.sock
touchstone ctl node info --wait 10s --endpoint unix:///run/touchstone/node.sock

# shellcheck shell=bash
on_disk /srv/pool
on_disk /var/lib/touchstone
block 1
printf 'state-dir: /var/lib/touchstone/state\npool: [default=/srv/pool]\n' >/etc/touchstone.yaml
fails "no driver" touchstone ctl doctor --config /etc/touchstone.yaml
touchstone serve --config /etc/touchstone.yaml 2>/run/log &
touchstone ctl capabilities --wait 10s >/dev/null
block 2

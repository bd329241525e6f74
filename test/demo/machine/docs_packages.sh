# shellcheck shell=bash
rm -f /var/lib/man-db/auto-update # dpkg would index all manual pages
on_disk /var/lib/touchstone
block 1
touchstone ctl volume create data --size 64Mi
block 2
echo kept >/mnt/data/notes
systemctl stop touchstone
umount /mnt/data
systemctl start touchstone
grep kept /mnt/data/notes
touchstone ctl volume umount data
touchstone ctl volume delete data

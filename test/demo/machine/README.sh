# shellcheck shell=bash
rm /usr/bin/touchstone # the block installs it
on_disk /var/lib/touchstone
block 1
command -v touchstone | grep -x /usr/local/bin/touchstone
test -s /usr/local/share/man/man1/touchstone-serve.1
test "$(touchstone ctl volume list -o name | sort | xargs)" = "copy data"
test "$(touchstone ctl snapshot list -o name)" = monday
findmnt -n -o FSTYPE /mnt/data | grep -x xfs
systemctl stop touchstone
umount /mnt/data
systemctl start touchstone
findmnt /mnt/data

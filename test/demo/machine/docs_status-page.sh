# shellcheck shell=bash
on_disk /var/lib/touchstone
block 1 &
touchstone ctl node info --wait 10s
exec 3<>/dev/tcp/127.0.0.1/9808
printf 'GET / HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3
grep '<title>' <&3

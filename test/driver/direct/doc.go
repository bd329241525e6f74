// Package direct tests direct volumes: their lifecycle on each filesystem with a guest that
// mounts the device, each answer that a guest may give, forged files and symlinks, SIGKILL
// in and between all calls, lost records and devices. Fanotify and the device's counters
// show that nothing on the host touches a device that a guest has.
package direct

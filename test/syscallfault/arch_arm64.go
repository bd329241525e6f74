package syscallfault

import "golang.org/x/sys/unix"

const (
	auditArch   = unix.AUDIT_ARCH_AARCH64
	sysFstatat  = unix.SYS_FSTATAT
	ioctlIsLive = unix.SECCOMP_IOCTL_NOTIF_ID_VALID
)

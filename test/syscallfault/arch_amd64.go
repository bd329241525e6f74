package syscallfault

import "golang.org/x/sys/unix"

const (
	auditArch   = unix.AUDIT_ARCH_X86_64
	sysFstatat  = unix.SYS_NEWFSTATAT
	ioctlIsLive = unix.SECCOMP_IOCTL_NOTIF_ID_VALID
)

package child

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// capabilityNames are the names of the capabilities, by their numbers.
const capabilityNames = `CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT
SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`

// boundCapabilities removes all other capabilities from what a program that this thread executes can
// have.
func boundCapabilities(kept []string) error {
	names := strings.Fields(capabilityNames)

	for _, each := range kept {
		if !slices.Contains(names, each) {
			return fmt.Errorf("capability %q: %w", each, os.ErrInvalid)
		}
	}

	for number, name := range names {
		if slices.Contains(kept, name) {
			continue
		}

		// EINVAL: a kernel that does not have it.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(number), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return os.NewSyscallError("prctl", err)
		}
	}

	return nil
}

// Package checks tests the checks of filesystems: on request and by schedule, online and
// offline, of sound and of damaged filesystems of each type. A check changes nothing, holds
// nothing back, and leaves no filesystem frozen.
package checks

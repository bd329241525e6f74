package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is what the results depend on.
type machine struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	Kernel     string `json:"kernel"`
	Filesystem string `json:"filesystem"`
	// Load is the load average at the start: what else the cores were busy with.
	Load string `json:"load"`
}

// describe leaves out what it cannot find.
func describe(ctx context.Context, dir string) machine {
	m := machine{CPU: cpuModel(), Cores: runtime.NumCPU()}

	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:])
	}

	if found, err := exec.CommandContext(ctx, "findmnt", "-n", "-o", "FSTYPE,SOURCE", "-T", dir).Output(); err == nil {
		m.Filesystem = strings.Join(strings.Fields(string(found)), " on ")
	}

	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _, _ = strings.Cut(string(load), " ")
	}

	return m
}

func cpuModel() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer file.Close()

	for lines := bufio.NewScanner(file); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}

	return runtime.GOARCH
}

func (m machine) String() string {
	return fmt.Sprintf("%s, %d cores, %s, %s, load %s", m.CPU, m.Cores, m.Kernel, m.Filesystem, m.Load)
}

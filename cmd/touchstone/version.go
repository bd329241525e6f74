package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is written by the linker: see LDFLAGS in the Makefile.
var version string

// build has the version and commit of this binary.
type build struct{ version, commit string }

// thisBuild takes the linker's version, else what Go itself has noted.
func thisBuild() build {
	b := build{version: version}

	if info, ok := debug.ReadBuildInfo(); ok {
		if b.version == "" {
			b.version = info.Main.Version
		}

		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				b.commit = setting.Value
			}
		}
	}

	if b.version == "" {
		b.version = "(devel)"
	}

	return b
}

// String is one line for people.
func (b build) String() string {
	text := b.version
	if b.commit != "" {
		text += " commit " + b.commit
	}

	return fmt.Sprintf("%s (%s %s/%s)", text, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the Go release",
		Args:  noArgs,
		Run: func(command *cobra.Command, _ []string) {
			fmt.Fprintln(command.OutOrStdout(), "touchstone", thisBuild())
		},
	}
}

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

const directoryMode = 0o755

// newManCommand returns the hidden command with which packages are built.
func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write the manual pages",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], directoryMode); err != nil {
				return exitWith(exitCannot, err)
			}

			root := command.Root()
			root.DisableAutoGenTag = true

			header := &doc.GenManHeader{Section: "1", Source: "Touchstone " + thisBuild().version, Manual: "Touchstone"}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return exitWith(exitCannot, fmt.Errorf("write the manual pages: %w", err))
			}

			return nil
		},
	}
}

package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/demo"
)

// newRootCommand is the table of contents: each command is made in a file of
// its own name.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "touchstone",
		Short: "A CSI driver with real volumes, to test against and to learn from",
		Long: `Touchstone is a CSI driver that makes real volumes on any Linux machine.
Without a command it serves, as "touchstone serve" does.

Exit codes: 0 good, 1 unhealthy or failed, 2 wrong usage or cannot run.`,
		Args:              cobra.ArbitraryArgs, // else cobra answers an unknown command itself, with code 1
		SilenceErrors:     true,
		SilenceUsage:      true,
		Version:           thisBuild().String(),
		PersistentPreRunE: func(command *cobra.Command, _ []string) error { return applySettings(command, os.LookupEnv) },
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) > 0 {
				return ctl.UnknownCommand(command, args)
			}

			return command.Help()
		},
	}
	root.Flags().Bool("version", false, "print the version") // without -v, which is the log's verbosity
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(ctl.FlagError)
	root.AddCommand(
		newServeCommand(),
		newStateCommand(),
		newVersionCommand(),
		newManCommand(),
		newHostpathCommand(),
		ctl.NewCommand(),
		ctl.NewCheckCommand(),
		demo.NewCommand(),
	)
	refuseHelpOfNothing(root)

	return root
}

// helpName is the name of the command and of the flag.
const helpName = "help"

// refuseHelpOfNothing has `help` of an unknown command fail as that command does: cobra's shows the help of the root.
func refuseHelpOfNothing(root *cobra.Command) {
	root.InitDefaultHelpCmd()

	help, _, _ := root.Find([]string{helpName})
	help.RunE = func(_ *cobra.Command, args []string) error {
		command, unknown, err := root.Find(args)
		if err != nil || len(unknown) > 0 {
			command.SetContext(help.Context()) // it has the flags that the error repeats

			return ctl.UnknownCommand(command, unknown)
		}

		return command.Help()
	}
}

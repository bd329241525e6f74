package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/uuid"
	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/flags"
	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/hostpath"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// hostpathProgram is the name of csi-driver-host-path's program, which this one acts as if it has it.
const hostpathProgram = "hostpathplugin"

// defaultKubeletDir is where kubelets have their directory.
const defaultKubeletDir = "/var/lib/kubelet"

// arguments returns the arguments of a command line, the program's name included.
func arguments(line []string) []string {
	if len(line) > 0 && filepath.Base(line[0]) == hostpathProgram {
		return append([]string{"hostpath"}, line[1:]...)
	}

	return line[min(len(line), 1):]
}

func newHostpathCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "hostpath [FLAGS OF HOSTPATHPLUGIN]",
		Short: "Serve as csi-driver-host-path's hostpathplugin does, with its flags and defaults",
		Long: `Serve as csi-driver-host-path's hostpathplugin does: with its flags, with one dash or
two, its defaults, and what COs that are tested with it expect (docs/hostpath.md).
A program of the name hostpathplugin does so without a command. Settings of "serve"
that no flag sets may be in the environment, such as TOUCHSTONE_STRICT=observe.`,
		DisableFlagParsing: true,
		RunE:               serveHostpath,
	}
}

func serveHostpath(command *cobra.Command, args []string) error {
	own := hostpath.NewFlags(command.ErrOrStderr())

	switch err := own.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return exitWith(exitNotWell, err)
	case own.IsVersion():
		_, err := fmt.Fprintln(command.OutOrStdout(), hostpathProgram, thisBuild().version)

		return err
	}

	settings, isProxy := own.ProxyArgs()
	if !isProxy {
		directories, err := kubeletDirs()
		if err != nil {
			return exitWith(exitCannot, err)
		}

		settings = own.Args(directories)
	}

	config := &driver.Config{}
	set := command.Flags()
	flags.Define(set, config)

	if err := set.Parse(settings); err != nil {
		return exitWith(exitNotWell, err)
	}

	if err := applyEnvironment(set, os.LookupEnv); err != nil {
		return exitWith(exitNotWell, err)
	}

	dialect := own.Dialect(command.ErrOrStderr())
	config.Outer, config.Inner = append(config.Outer, dialect.Log), append(config.Inner, dialect.Translate)
	config.ProxyAnywhere, config.Controller.MetadataBlocks = true, own.MetadataBlocks()
	config.Controller.DetachInUse = own.DetachesInUse()

	if err := serve(command, config); err != nil || isProxy {
		return err
	}

	return exitWith(exitCannot, removeUnused(own))
}

// kubeletDirs returns where target paths may lie: the kubelet's directories, of which the manifests mount
// only pods and plugins, and that of temporary files, which csi-sanity uses.
func kubeletDirs() ([]string, error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return filepath.Base(m.Mountpoint) != "pods", false
	})
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}

	var found []string
	for _, mount := range mounts {
		found = append(found, filepath.Dir(mount.Mountpoint))
	}

	return append(found, defaultKubeletDir, os.TempDir()), nil
}

// removeUnused removes the driver's own directory if it has no volume, no snapshot and no other file, such
// as the image of an embedded pool, so that none is left of each of the many drivers that tests deploy on
// one host directory. The pools of an earlier start, with other capacities, are among what is in it.
func removeUnused(own *hostpath.Flags) error {
	err := state.Exclusively(own.StateDir(), "removes it", func() error {
		if used, err := isUsed(own.Directory(), own.StateDir()); err != nil || used {
			return err
		}

		return os.RemoveAll(own.Directory())
	})
	if errors.As(err, new(*state.LockedError)) || errors.Is(err, fs.ErrNotExist) {
		return nil // another process has it by now, or none has begun
	}

	return err
}

// isUsed reports whether a directory has something in it but that of the state, sockets, and the
// directories, identities and locks of pools.
func isUsed(directory, stateDir string) (used bool, err error) {
	own := []string{layout.Identity, layout.ControllerLock}
	err = filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == stateDir:
			return fs.SkipDir
		case uuid.Validate(entry.Name()) == nil, entry.Type()&(fs.ModeDir|fs.ModeSocket) == 0 && !slices.Contains(own, entry.Name()):
			used = true

			return fs.SkipAll
		default:
			return nil
		}
	})

	return used, err
}

// Backup shows how a backup tool uses a CSI driver's changed blocks: it keeps
// snapshots of block volumes in files, the first one whole and then only what
// has changed, and makes volumes of them again.
//
// It contains what a reader needs to see of the way from snapshots to
// backups and back. It speaks CSI alone and knows nothing of Touchstone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

const usage = `Usage:
  backup [flags] full SNAPSHOT FILE                what a snapshot holds, into a new file
  backup [flags] incremental BASE SNAPSHOT FILE    what has changed in it since BASE
  backup [flags] restore NAME FILE...              a new volume of a full backup and what follows it;
                                                   a volume that has the name already is overwritten
`

var errUsage = errors.New("wrong arguments")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)

	stop()

	if err != nil {
		fmt.Fprintln(os.Stderr, "backup:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("backup", flag.ContinueOnError)
	endpoint := flags.String("endpoint", os.Getenv("CSI_ENDPOINT"), "the driver's socket, such as unix:///run/touchstone/csi.sock")
	dir := flags.String("dir", "", "where to publish volumes meanwhile; the driver has to allow it")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}

	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}

	// A driver takes no relative paths: its directory is another.
	place, err := filepath.Abs(*dir)
	if err != nil {
		return fmt.Errorf("-dir: %w", err)
	}

	client, err := csiclient.Connect(*endpoint)
	if err != nil {
		return err
	}
	defer client.Close()

	t := &tool{client: client, dir: place, out: out}

	switch command, rest := flags.Arg(0), flags.Args(); {
	case command == "full" && len(rest) == 3:
		return t.full(ctx, rest[1], rest[2])
	case command == "incremental" && len(rest) == 4:
		return t.incremental(ctx, rest[1], rest[2], rest[3])
	case command == "restore" && len(rest) > 2:
		return t.restore(ctx, rest[1], rest[2:])
	default:
		flags.Usage()

		return errUsage
	}
}

package ctl

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/pkg/operation/progress"
)

const (
	// terminalInterval is how often a line that is written over changes.
	terminalInterval = 250 * time.Millisecond
	lineInterval     = "3s"
	clearLine        = "\r\x1b[K"
	percent          = 100
)

// followFlags say how a command that may take long tells how far it is.
type followFlags struct{ every time.Duration }

func (f *followFlags) register(cmd *cobra.Command) {
	const name = "progress"

	cmd.Flags().DurationVar(&f.every, name, 0,
		"tell on stderr how far a long copy is, a line each time (on a terminal it is told anyway)")
	cmd.Flags().Lookup(name).NoOptDefVal = lineInterval
}

// The kinds of copies, as pkg/operation/progress hears of them from the driver.
const (
	kindSnapshot = "snapshot"
	kindGroup    = "group snapshot"
	kindRestore  = "restore"
	kindClone    = "clone"
)

// follow tells on the side how far copies of this kind are, until it is stopped.
// Which of them is the command's own is not known before its answer: it may have
// joined one that began earlier. So others are told of too, each under its id. A
// driver that does not say is not asked twice.
func (s *session) follow(ctx context.Context, flags followFlags, kind string) (stop func()) {
	show := &display{out: s.side, terminal: isTerminal(s.side), every: flags.every, kind: kind}

	switch {
	case show.every > 0:
		show.terminal = false
	case show.terminal:
		show.every = terminalInterval
	default:
		return func() {}
	}

	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})

	go func() {
		defer close(ended)

		show.run(ctx, progress.NewClient(s.Conn()))
	}()

	return func() {
		cancel()
		<-ended
	}
}

// display is where progress is told: a line that is written over, or many.
type display struct {
	out      io.Writer
	terminal bool
	every    time.Duration
	kind     string
}

func (d *display) run(ctx context.Context, client *progress.Client) {
	ticks := time.NewTicker(d.every)
	defer ticks.Stop()

	defer func() {
		if d.terminal {
			fmt.Fprint(d.out, clearLine)
		}
	}()

	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}

		entries, err := client.List(ctx)
		if err != nil {
			return // It is a courtesy: the command's own call tells what is wrong.
		}

		d.print(entries)
	}
}

func (d *display) print(entries []progress.Entry) {
	var lines []string

	for _, entry := range entries {
		if entry.Kind == d.kind {
			lines = append(lines, Printable(progressLine(entry)))
		}
	}

	switch {
	case d.terminal:
		fmt.Fprint(d.out, clearLine+strings.Join(lines, ", "))
	case len(lines) > 0:
		fmt.Fprintln(d.out, strings.Join(lines, "\n"))
	}
}

func progressLine(entry progress.Entry) string {
	took := max(time.Since(entry.Started), time.Millisecond)
	pace := formatBytes(int64(float64(entry.Done)/took.Seconds())) + "/s"

	if entry.Total > 0 && entry.Done >= entry.Total {
		pace = "on its way to the disk"
	}

	return fmt.Sprintf("%s of %s: %s, %s", entry.Kind, entry.Object, formatProgress(entry), pace)
}

func formatProgress(entry progress.Entry) string {
	if entry.Total <= 0 {
		return formatBytes(entry.Done)
	}

	return fmt.Sprintf("%s of %s (%d %%)", formatBytes(entry.Done), formatBytes(entry.Total),
		int64(percent*float64(entry.Done)/float64(entry.Total)))
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}

	_, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)

	return err == nil
}

func newOperationsCommand(given *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "operations",
		Short: "The copies that are running, and how far they are (Touchstone only)",
		Args:  exactly(0),
		RunE: given.inSession(func(ctx context.Context, s *session) error {
			entries, err := progress.NewClient(s.Conn()).List(ctx)
			if err != nil {
				return err
			}

			document, err := json.Marshal(entries)
			if err != nil {
				return fmt.Errorf("encode the operations: %w", err)
			}

			rows := [][]string{{"KIND", "OBJECT", "DONE", "FOR"}}
			for _, entry := range entries {
				rows = append(rows, []string{
					entry.Kind, entry.Object, formatProgress(entry), time.Since(entry.Started).Round(time.Second).String(),
				})
			}

			return s.showAll(map[string]json.RawMessage{"operations": document}, rows)
		}),
	}
}

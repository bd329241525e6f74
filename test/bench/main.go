package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	embeddedpool "github.com/touchstone-csi/touchstone/internal/pool/embedded"
)

// topic is a group of measurements that share their volumes.
type topic struct {
	name    string
	measure func(ctx context.Context, b *bench) error
}

func topics() []topic {
	return []topic{
		{"create", create},
		{"read", read},
		{"publish", publish},
		{"life", life},
		{"isolation", isolation},
		{"scale", scale},
		{"million", million},
		{"copies", copies},
		{"fallback", fallback},
		{"directories", directories},
		{"health", health},
		{"checks", checks},
		{"filesystems", poolFilesystems},
		{"staged", staged},
		{"many", many},
		{"data", data},
	}
}

// bench is one run of the program.
type bench struct {
	binary  string
	dir     string
	results *results
	// poolFS is the filesystem of embedded pools.
	poolFS string
	// staged is how many volumes the topic of that name stages; 0 leaves it out.
	staged int
	// million includes the topic of that name.
	million bool
}

func main() {
	// Every load is bounded in count; this bounds what hangs.
	const limit = time.Hour

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, limit)
	err := run(ctx, os.Args[1:])

	cancel()
	stop()

	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	binary := flags.String("binary", "bin/touchstone", "the driver to measure")
	other := flags.String("compare", "", "an older driver, which is measured in turn: the table has the ratios to it")
	dir := flags.String("dir", os.TempDir(), "where state and pool lie: a directory on a real disk, not a tmpfs")
	out := flags.String("out", "out/bench.json", "the file for the results")
	only := flags.String("only", "", "a regular expression of the topics to measure: create, read, publish, life, isolation, scale, million, copies, fallback, directories, health, checks, filesystems, staged, many, data")
	many := flags.Int("staged", 0, "how many volumes the topic staged stages, for example 10000")
	withMillion := flags.Bool("million", false, "measure the topic million, which creates 1,000,000 volumes and takes 10 minutes a round")
	poolFS := flags.String("pool-image-fs", embeddedpool.DefaultFilesystem, "the filesystem of the embedded pool of the topics copies and checks")
	rounds := flags.Int("rounds", 3, "how often to measure; the table shows the median")

	if err := flags.Parse(args); err != nil {
		return err
	}

	chosen, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}

	// Absolute: a driver that enters a mount namespace begins at its root.
	parent, err := filepath.Abs(*dir)
	if err != nil {
		return fmt.Errorf("-dir: %w", err)
	}

	home, err := os.MkdirTemp(parent, "touchstone-bench-")
	if err != nil {
		return fmt.Errorf("-dir: %w", err)
	}
	defer os.RemoveAll(home)

	var measured []*bench

	for _, each := range []string{*binary, *other} {
		if each == "" {
			continue
		}

		program, err := filepath.Abs(each)
		if err != nil {
			return fmt.Errorf("the driver %s: %w", each, err)
		}

		measured = append(measured, &bench{
			binary: program, dir: home, results: newResults(describe(ctx, home)), poolFS: *poolFS, staged: *many, million: *withMillion,
		})
	}

	if err := measureInTurn(ctx, measured, chosen, *rounds); err != nil {
		return err
	}

	if len(measured) > 1 {
		measured[0].results.compare(os.Stdout, measured[1].results)
	} else {
		measured[0].results.table(os.Stdout)
	}

	return measured[0].results.save(*out)
}

// measureInTurn measures the topics with each driver. Of two, each begins every other round.
func measureInTurn(ctx context.Context, measured []*bench, chosen *regexp.Regexp, rounds int) error {
	for round := range rounds {
		for _, topic := range topics() {
			if !chosen.MatchString(topic.name) {
				continue
			}

			for i := range measured {
				b := measured[(round+i)%len(measured)]
				fmt.Fprintf(os.Stderr, "round %d of %d: %s, %s\n", round+1, rounds, topic.name, b.binary)

				before := loopDevices()

				if err := errors.Join(topic.measure(ctx, b), removeLoops(ctx, before)); err != nil {
					return fmt.Errorf("%s: %w", topic.name, err)
				}
			}
		}
	}

	return nil
}

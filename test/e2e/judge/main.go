package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

const (
	exitNotWell = 1
	exitUsage   = 2
)

// errNotWell is what makes a run fail; what it is has been printed.
var errNotWell = errors.New("not all was well")

func main() { os.Exit(exitCode(run(os.Args[1:], os.Stdout), os.Stderr)) }

// exitCode prints an error, unless that was printed before, and returns the exit code for it.
func exitCode(err error, stderr io.Writer) int {
	switch {
	case errors.Is(err, errNotWell):
		return exitNotWell
	case err != nil:
		fmt.Fprintln(stderr, "judge:", err)

		return exitUsage
	default:
		return 0
	}
}

// options are the command line.
type options struct {
	rules, driver, report, lacking string
	nodes                          int
}

func run(args []string, out io.Writer) error {
	if len(args) > 0 && args[0] == "total" {
		return total(out, args[1:])
	}

	if len(args) > 0 && args[0] == "compare" {
		return compare(out, args[1:])
	}

	if len(args) == 0 || (args[0] != "skip" && args[0] != "report") {
		return errors.New("usage: judge skip|report -rules FILE -driver FILE [-lacking WHAT,...] [-report FILE] [-nodes N], " +
			"judge compare -report FILE [-baseline FILE] [-logs DIRECTORY], or judge total with reports")
	}

	var o options

	flags := flag.NewFlagSet("judge "+args[0], flag.ContinueOnError)
	flags.StringVar(&o.rules, "rules", "", "rules.yaml: what is excluded, and which skips are expected")
	flags.StringVar(&o.driver, "driver", "", "the test-driver file, without which nothing is claimed")
	flags.StringVar(&o.lacking, "lacking", "", "what this cluster lacks, separated by commas: words of rules.yaml")
	flags.StringVar(&o.report, "report", "", "ginkgo's JSON report of the run")
	flags.IntVar(&o.nodes, "nodes", 1, "how many nodes the cluster has for pods")

	if err := flags.Parse(args[1:]); err != nil {
		return fmt.Errorf("reading the command line: %w", err)
	}

	rules, err := readRules(o.rules, strings.FieldsFunc(o.lacking, func(r rune) bool { return r == ',' || r == ' ' }))
	if err != nil {
		return err
	}

	name := strings.TrimSuffix(filepath.Base(o.driver), filepath.Ext(o.driver))

	if args[0] == "skip" {
		_, err = fmt.Fprintln(out, rules.skipExpression(name))

		return err
	}

	claims, err := readClaims(o.driver)
	if err != nil {
		return err
	}

	verdict, err := judge(o.report, name, rules, claims, o.nodes)
	if err != nil {
		return err
	}

	return verdict.print(out)
}

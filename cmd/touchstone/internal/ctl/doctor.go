package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/doctor"
	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/flags"
	configuration "github.com/touchstone-csi/touchstone/internal/driver"
)

// DriversFile annotates a flag that names the driver's configuration file: the command ignores
// keys that only the driver knows.
const DriversFile = "drivers-file"

// examineFlag makes this process the child of doctor.ExamineInChild.
const examineFlag = "examine"

var (
	errUnknownCheck = errors.New("there is no such check")
	errNoSocket     = errors.New("the doctor checks the file of the driver's socket; name its path")
)

// doctorSettings are the settings of the driver that the checks need.
var doctorSettings = []string{
	"mode", "driver-name", "state-dir", "pool", "pool-image-size", "pool-image-fs", "kubelet-dir", "kubelet-registration-dir",
	"direct-volume-root", "kata-runtime", "cgroup-root", "health-events", driversFileFlag,
}

// driversFileFlag names the driver's YAML file.
const driversFileFlag = "config"

// doctorFlags are the flags of `ctl doctor`: flags of the driver, and its own.
type doctorFlags struct {
	doctor.Config

	driver configuration.Config
	// examine is true in the child process.
	examine bool
}

func newDoctorCommand(given *settings) *cobra.Command {
	asked := &doctorFlags{}

	cmd := &cobra.Command{
		Use:   "doctor [CHECK…]",
		Short: "Check this machine for what an installation needs",
		Long: `Check this machine or container for what a driver needs, and print how to fix what
is missing. It takes the driver's own flags, environment and --config, so that in the
driver's container no argument is needed. It changes nothing, and needs no driver:
before there is one, give --without-driver.

The checks: ` + strings.Join(doctor.Names(), ", ") + `.

Exit code 0: no check finds a problem, 1: one does, 2: wrong usage, or no check could
run. Warnings are printed, and do not change the exit code.`,
		Example: `  touchstone ctl doctor --without-driver --pool default=/srv/pool
  kubectl exec -n touchstone ds/touchstone-node -- touchstone ctl doctor
  touchstone ctl doctor -o json pool socket`,
		Args: func(_ *cobra.Command, args []string) error { return cmp.Or(checkNames(args), given.refuseNames()) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if asked.examine {
				return undetermined(doctor.ServeChild(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout()))
			}

			endpoint, err := given.endpointOf(cmd)
			if err != nil {
				return err
			}

			if asked.Endpoint = endpoint; !strings.HasPrefix(endpoint, "unix:") && !asked.WithoutDriver {
				return usage(fmt.Errorf("--endpoint %q: %w", endpoint, errNoSocket))
			}

			config, err := asked.complete(args)
			if err != nil {
				return usage(err)
			}

			ctx, cancel := given.limit(cmd.Context())
			defer cancel()

			return undetermined(diagnose(ctx, config, &printer{given, cmd.OutOrStdout(), nil}))
		},
	}
	asked.define(cmd.Flags())

	return cmd
}

func checkNames(names []string) error {
	for _, name := range names {
		if !slices.Contains(doctor.Names(), name) {
			return usage(fmt.Errorf("%w as %q; there are %s", errUnknownCheck, name, strings.Join(doctor.Names(), ", ")))
		}
	}

	return nil
}

func (f *doctorFlags) define(set *pflag.FlagSet) {
	flags.Define(set, &f.driver, doctorSettings...)
	set.BoolVar(&f.WithoutDriver, "without-driver", false, "no driver runs yet: skip the checks that need one")
	f.Limit = doctor.DefaultLimit
	set.Var(span(&f.Limit), "check-timeout", "time limit of each check")
	set.BoolVar(&f.examine, examineFlag, false, "run the checks of standard input's configuration")

	// Neither can fail: the flags are defined above.
	_ = set.SetAnnotation(driversFileFlag, DriversFile, []string{""})
	_ = set.MarkHidden(examineFlag)
}

func (f *doctorFlags) complete(checks []string) (doctor.Config, error) {
	given, config := &f.driver, f.Config
	config.Mode, config.DriverName, config.StateDir, config.KubeletDir = string(given.Mode), given.DriverName, given.StateDir, given.KubeletDir
	config.Pools, config.PoolImageBytes, config.PoolImageFS = given.Pools, given.PoolImageBytes, given.PoolImageFS
	config.RegistrationDir, config.DirectVolumeRoot = given.Registration.Directory, given.Node.Direct.Root
	config.KataRuntime, config.CgroupRoot = given.Node.Direct.Guest.KataRuntime, given.Node.CgroupRoot
	config.HealthPolling, config.Only, config.Built = given.Health.PollingOnly, checks, builtAt()

	return config, given.CheckSettings()
}

// builtAt returns the time of this program's commit, or else of its file.
func builtAt() time.Time {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if at, err := time.Parse(time.RFC3339, setting.Value); setting.Key == "vcs.time" && err == nil {
				return at
			}
		}
	}

	if info, err := os.Stat("/proc/self/exe"); err == nil {
		return info.ModTime()
	}

	return time.Time{}
}

// diagnosis is the JSON output.
type diagnosis struct {
	doctor.Report

	// Verdict is the worst verdict of all findings.
	Verdict doctor.Verdict `json:"verdict"`
}

func diagnose(ctx context.Context, config doctor.Config, to *printer) error {
	report, err := doctor.ExamineInChild(ctx, config, "ctl", "doctor", "--"+examineFlag)
	if err != nil {
		return err
	}

	if err := findingColumns.show(to, nil, diagnosis{report, report.Worst()}, report.Findings...); err != nil {
		return err
	}

	if !to.structured() {
		printCures(to, &report)
	}

	if problems := report.Count(doctor.Problem); problems > 0 {
		return unhealthy(fmt.Errorf("%w: %d of %d checks find a problem", errUnhealthy, problems, len(report.Findings)))
	}

	return nil
}

var findingColumns = columns[doctor.Finding]{
	{header: "CHECK", text: func(f doctor.Finding) string { return f.Check }},
	{header: "OBJECT", text: func(f doctor.Finding) string { return f.Object }},
	{header: "VERDICT", text: func(f doctor.Finding) string { return string(f.Verdict) }},
	{header: "SEEN", text: func(f doctor.Finding) string { return f.Seen }},
}

// printCures prints the cures, problems first, below the table, in which they do not fit.
func printCures(to *printer, report *doctor.Report) {
	title := "\nWhat to do:\n"

	for _, verdict := range []doctor.Verdict{doctor.Problem, doctor.Warning} {
		for _, each := range report.Findings {
			if each.Verdict != verdict || each.Cure == "" {
				continue
			}

			fmt.Fprintf(to.out, "%s  %s: %s\n", title, Printable(strings.TrimSpace(each.Check+" "+each.Object)), Printable(each.Cure))

			title = ""
		}
	}
}

package ctl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/doctor"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/pool/embedded"
	"github.com/touchstone-csi/touchstone/internal/quantity"
)

// DriversFile annotates a flag that names the driver's configuration file: the command ignores
// keys that only the driver knows.
const DriversFile = "drivers-file"

// examineFlag makes this process the child of doctor.ExamineInChild.
const examineFlag = "examine"

var (
	errUnknownCheck = errors.New("there is no such check")
	errDoctorMode   = errors.New("must be all, controller or node")
	errNotPool      = errors.New("must be NAME=DIRECTORY, each name once")
	errNotAbsolute  = errors.New("must be an absolute path")
)

// doctorFlags are the flags of `ctl doctor`: flags of the driver, and its own.
type doctorFlags struct {
	doctor.Config

	pools          []string
	poolImageBytes quantity.Bytes
	healthEvents   bool
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
		Args: func(_ *cobra.Command, args []string) error { return checkNames(args) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if asked.examine {
				return undetermined(doctor.ServeChild(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout()))
			}

			endpoint, err := given.endpointOf(cmd)
			if err != nil {
				return err
			}

			asked.Endpoint = endpoint

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

func (f *doctorFlags) define(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&f.Mode, "mode", doctor.ModeAll, "the driver's mode: all, controller or node")
	flags.StringVar(&f.DriverName, "driver-name", "csi.touchstone.dev", "the driver's name")
	flags.StringVar(&f.StateDir, "state-dir", "/var/lib/touchstone/state", "directory of the driver's durable records")
	flags.StringSliceVar(&f.pools, "pool", []string{"default=/var/lib/touchstone/pool"},
		"a pool of volumes as NAME=DIRECTORY (repeatable)")
	flags.Var(&f.poolImageBytes, "pool-image-size", "the size of embedded pools; 0 is none")
	flags.StringVar(&f.PoolImageFS, "pool-image-fs", embedded.DefaultFilesystem, "the filesystem of new embedded pools")
	flags.StringVar(&f.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "the directory in which target paths may lie")
	flags.StringVar(&f.RegistrationDir, "kubelet-registration-dir", "", "where the driver registers with the kubelet")
	flags.StringVar(&f.DirectVolumeRoot, "direct-volume-root", kata.DefaultRoot,
		"where VM-based runtimes look for volumes that are assigned to them directly")
	flags.StringVar(&f.KataRuntime, "kata-runtime", "", "the kata-runtime that the driver asks guests with")
	flags.StringVar(&f.CgroupRoot, "cgroup-root", cgroup.DefaultCgroupRoot, "where the machine's cgroups are mounted")
	flags.BoolVar(&f.healthEvents, "health-events", true, "whether the driver uses events of the kernel")
	flags.String("config", "", "the driver's YAML file with these flags' names as keys; others are ignored")
	flags.BoolVar(&f.WithoutDriver, "without-driver", false, "no driver runs yet: skip the checks that need one")
	flags.DurationVar(&f.Limit, "check-timeout", doctor.DefaultLimit, "time limit of each check")
	flags.BoolVar(&f.examine, examineFlag, false, "run the checks of standard input's configuration")

	// Neither can fail: the flags are defined above.
	_ = flags.SetAnnotation("config", DriversFile, []string{""})
	_ = flags.MarkHidden(examineFlag)
}

func (f *doctorFlags) complete(checks []string) (doctor.Config, error) {
	config := f.Config
	config.PoolImageBytes, config.HealthPolling = int64(f.poolImageBytes), !f.healthEvents
	config.Only, config.Built, config.Pools = checks, builtAt(), map[string]string{}

	if !slices.Contains([]string{doctor.ModeAll, doctor.ModeController, doctor.ModeNode}, config.Mode) {
		return config, fmt.Errorf("--mode %q %w", config.Mode, errDoctorMode)
	}

	for _, given := range f.pools {
		name, directory, ok := strings.Cut(given, "=")
		if _, twice := config.Pools[name]; !ok || name == "" || directory == "" || twice {
			return config, fmt.Errorf("--pool %q %w", given, errNotPool)
		}

		config.Pools[name] = directory
	}

	places := map[string]string{
		"state-dir": config.StateDir, "kubelet-dir": config.KubeletDir, "direct-volume-root": config.DirectVolumeRoot,
		"cgroup-root": config.CgroupRoot,
	}
	for name, directory := range config.Pools {
		places["pool "+name] = directory
	}

	for _, flag := range slices.Sorted(maps.Keys(places)) {
		if !filepath.IsAbs(places[flag]) {
			return config, fmt.Errorf("--%s: %q %w", flag, places[flag], errNotAbsolute)
		}
	}

	return config, nil
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

	if err := to.show(diagnosis{report, report.Worst()}, findingColumns.table(to.output, report.Findings...)); err != nil {
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

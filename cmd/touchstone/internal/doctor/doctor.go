package doctor

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/touchstone-csi/touchstone/internal/operation"
)

// Verdict is the outcome of a check.
type Verdict string

// The verdicts.
const (
	OK Verdict = "ok"
	// Warning means that it works with restrictions.
	Warning Verdict = "warning"
	// Problem means that it does not work.
	Problem Verdict = "problem"
	// Skipped means that there was nothing to check.
	Skipped Verdict = "skipped"
)

// Finding is the result of a check for one object.
type Finding struct {
	// Check is the check's name; Object is what it checked if there are several, such as
	// the name of a pool.
	Check   string  `json:"check"`
	Object  string  `json:"object,omitempty"`
	Verdict Verdict `json:"verdict"`
	// Seen describes what was found, Cure how to fix it.
	Seen string `json:"seen"`
	Cure string `json:"cure,omitempty"`
}

// Report contains the findings in the order of the checks.
type Report struct {
	At       time.Time `json:"at"`
	Findings []Finding `json:"findings"`
}

// Count returns how many findings have a verdict.
func (r *Report) Count(verdict Verdict) int {
	count := 0

	for i := range r.Findings {
		if r.Findings[i].Verdict == verdict {
			count++
		}
	}

	return count
}

// Worst returns the worst verdict: Problem, Warning or OK.
func (r *Report) Worst() Verdict {
	for _, verdict := range []Verdict{Problem, Warning} {
		if r.Count(verdict) > 0 {
			return verdict
		}
	}

	return OK
}

// The driver's modes.
const (
	ModeAll        = "all"
	ModeController = "controller"
	ModeNode       = "node"
)

// DefaultLimit is the default time limit of a check, far longer than any takes.
const DefaultLimit = 10 * time.Second

// recheckPause is the default time between two observations of leftovers, longer than most calls take.
const recheckPause = 700 * time.Millisecond

// Config contains the flags with which the driver runs, or will run.
type Config struct {
	// Mode is one of the three.
	Mode string `json:"mode"`
	// Endpoint is unix:///path, unix:path or a path.
	Endpoint   string `json:"endpoint"`
	DriverName string `json:"driverName"`
	StateDir   string `json:"stateDir"`
	// Pools maps a pool's name to its directory. PoolImageBytes is above 0 if the driver
	// embeds a filesystem in pools that cannot reflink.
	Pools          map[string]string `json:"pools"`
	PoolImageBytes int64             `json:"poolImageBytes"`
	// PoolImageFS is the filesystem of a new one; empty means the driver's default.
	PoolImageFS string `json:"poolImageFS"`
	KubeletDir  string `json:"kubeletDir"`
	// RegistrationDir is the directory in which the driver registers with the kubelet;
	// empty means that it does not.
	RegistrationDir  string `json:"registrationDir"`
	DirectVolumeRoot string `json:"directVolumeRoot"`
	// KataRuntime is the path of kata-runtime; empty means none.
	KataRuntime string `json:"kataRuntime"`
	CgroupRoot  string `json:"cgroupRoot"`
	// HealthPolling means that the driver uses no events.
	HealthPolling bool `json:"healthPolling"`
	// WithoutDriver means that no driver is expected to run.
	WithoutDriver bool `json:"withoutDriver"`
	// Built is the time at which the driver was built; zero means unknown.
	Built time.Time `json:"built"`
	// Limit is the time limit of each check; 0 means DefaultLimit.
	Limit time.Duration `json:"limit"`
	// Recheck is the time between two observations of leftovers, because a device or mount may briefly belong
	// to no volume during a call; 0 means the default.
	Recheck time.Duration `json:"recheck"`
	// Only contains the names of the checks to run; empty means all.
	Only []string `json:"only"`
}

// node reports whether the driver attaches and mounts on this machine.
func (c *Config) node() bool { return c.Mode != ModeController }

// timeoutGrace is the time after its limit in which a check that respects its context can return.
const timeoutGrace = time.Second

// Examine runs the checks concurrently, and returns when the last has finished or reached
// its time limit. A check that hangs is abandoned with its goroutine.
func Examine(ctx context.Context, c Config) Report {
	c.Limit, c.Recheck = cmp.Or(c.Limit, DefaultLimit), cmp.Or(c.Recheck, recheckPause)
	report := Report{At: time.Now(), Findings: []Finding{}}
	results := []<-chan Finding{}

	for _, each := range checks {
		if len(c.Only) > 0 && !slices.Contains(c.Only, each.name) {
			continue
		}

		objects := []string{""}
		if each.objects != nil {
			objects = each.objects(&c)
		}

		for _, object := range objects {
			result := make(chan Finding, 1)
			results = append(results, result)

			go func() {
				found := each.examine(ctx, &c, object)
				found.Check, found.Object = each.name, object
				result <- found
			}()
		}
	}

	for _, each := range results {
		report.Findings = append(report.Findings, <-each)
	}
	return report
}

// examine runs the check for one object within its time limit, unless it does not apply.
func (k *check) examine(ctx context.Context, c *Config, object string) Finding {
	if why := k.reasonToSkip(c); why != "" {
		return skipped(why)
	}

	limited, cancel := context.WithTimeout(ctx, c.Limit)
	defer cancel()
	late, cancelLate := context.WithTimeout(ctx, c.Limit+timeoutGrace)
	defer cancelLate()

	found, err := operation.Await(late, func() (Finding, error) { return k.run(limited, c, object), nil })
	switch {
	case err == nil:
		return found
	case ctx.Err() != nil:
		return skipped("it was cancelled: " + context.Cause(ctx).Error())
	default:
		return problem("it does not answer within "+c.Limit.String()+": what it checks hangs",
			"check the storage below it: a network filesystem whose server is gone, a disk that fails (dmesg)")
	}
}

package doctor

import (
	"context"
	"slices"
	"time"
)

// Verdict is the outcome of a check.
type Verdict string

// The verdicts.
const (
	OK Verdict = "ok"
	// Warning is for what works, but not as well as it could, or not for all.
	Warning Verdict = "warning"
	// Problem is for what does not work.
	Problem Verdict = "problem"
	// Skipped means that there was nothing to look at.
	Skipped Verdict = "skipped"
)

// Finding is what a check says of one thing.
type Finding struct {
	// Check is the check's name, and Object what it looked at where there are
	// several such, as the name of a pool.
	Check   string  `json:"check"`
	Object  string  `json:"object,omitempty"`
	Verdict Verdict `json:"verdict"`
	// Seen is what was found, and Cure what to do about it.
	Seen string `json:"seen"`
	Cure string `json:"cure,omitempty"`
}

// Report is what an examination found, in the order of the checks.
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

// DefaultLimit is how long a check may take, and far more than any needs.
const DefaultLimit = 10 * time.Second

// Config is how the driver is run, or will be: its flags.
type Config struct {
	// Mode is one of the three.
	Mode string `json:"mode"`
	// Endpoint is unix:///path, unix:path or a path.
	Endpoint   string `json:"endpoint"`
	DriverName string `json:"driverName"`
	StateDir   string `json:"stateDir"`
	// Pools maps a pool's name to its directory, and PoolImageBytes is above 0
	// where the driver embeds a filesystem in those that need one.
	Pools          map[string]string `json:"pools"`
	PoolImageBytes int64             `json:"poolImageBytes"`
	KubeletDir     string            `json:"kubeletDir"`
	// RegistrationDir is where the driver registers itself with the kubelet; empty
	// is not at all.
	RegistrationDir  string `json:"registrationDir"`
	DirectVolumeRoot string `json:"directVolumeRoot"`
	// KataRuntime is empty for none.
	KataRuntime string `json:"kataRuntime"`
	CgroupRoot  string `json:"cgroupRoot"`
	// HealthPolling means that no events are wanted.
	HealthPolling bool `json:"healthPolling"`
	// WithoutDriver means that none is expected to run.
	WithoutDriver bool `json:"withoutDriver"`
	// Built is when the driver was built; zero is unknown.
	Built time.Time `json:"built"`
	// Limit is how long each check may take; 0 is DefaultLimit.
	Limit time.Duration `json:"limit"`
	// Only are the names of the checks to make; none is all.
	Only []string `json:"only"`
}

// node says whether the driver attaches and mounts on this machine.
func (c *Config) node() bool { return c.Mode != ModeController }

// slack is what a check that heeds its context has for saying so.
const timeoutGrace = time.Second

// Examine makes the checks, all at once, and returns when the last has ended or
// had its time. One that hangs is left behind, with a goroutine.
func Examine(ctx context.Context, c Config) Report {
	if c.Limit == 0 {
		c.Limit = DefaultLimit
	}

	under := []*running{}

	for _, each := range checks() {
		if len(c.Only) > 0 && !slices.Contains(c.Only, each.name) {
			continue
		}

		for _, object := range each.objectsOf(&c) {
			under = append(under, start(ctx, &c, each, object))
		}
	}

	report := Report{At: time.Now(), Findings: make([]Finding, 0, len(under))}

	// One clock for all, as they have begun together.
	late := time.NewTimer(c.Limit + timeoutGrace)
	defer late.Stop()

	for _, each := range under {
		report.Findings = append(report.Findings, each.wait(ctx, late, c.Limit))
	}

	return report
}

// visit is a check that is under way for one object.
type running struct {
	check

	object string
	results chan result
}

func start(ctx context.Context, c *Config, made check, object string) *running {
	v := &running{check: made, object: object, results: make(chan result, 1)}

	if why := made.reasonToSkip(c); why != "" {
		v.results <- skipped(why)

		return v
	}

	limited, cancel := context.WithTimeout(ctx, c.Limit)

	go func() {
		defer cancel()

		v.results <- made.run(limited, c, object)
	}()

	return v
}

// end waits for the answer. The clock is left as it was, for those that follow.
func (v *running) wait(ctx context.Context, late *time.Timer, limit time.Duration) Finding {
	var said result

	select {
	case said = <-v.results:
	case <-late.C:
		late.Reset(0)

		said = v.timedOut(limit)
	case <-ctx.Done():
		said = skipped("it was called off: " + context.Cause(ctx).Error())
	}

	return Finding{Check: v.name, Object: v.object, Verdict: said.verdict, Seen: said.seen, Cure: said.cure}
}

// hangs prefers an answer that has come meanwhile: of a timer and an answer that are
// both there, select takes either.
func (v *running) timedOut(limit time.Duration) result {
	select {
	case said := <-v.results:
		return said
	default:
		return problem("it does not answer within "+limit.String()+": what it looks at hangs",
			"look at the storage below it: a network filesystem whose server is gone, a disk that fails (dmesg)")
	}
}

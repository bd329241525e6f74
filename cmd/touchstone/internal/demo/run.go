package demo

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

const (
	// stepLimit ends a step that hangs; it is far longer than any step takes.
	stepLimit = time.Minute
	// cleanUpLimit limits the time in which mounts and devices are removed.
	cleanUpLimit = 10 * time.Second
	// logTail is how much of the driver's log is shown when a step fails.
	logTail = 20

	// Codes of ECMA-48's Select Graphic Rendition.
	bold  = 1
	faint = 2
	red   = 31
	green = 32
)

var (
	errInterrupted = errors.New("interrupted")
	errUnexpected  = errors.New("unexpected result")
)

// demo is one run.
type demo struct {
	root   string
	driver *driver // Nil while none is expected to run.

	out    *bufio.Writer // Flushed after each step. It keeps the first error.
	colour bool
	steps  int
	// printed is what the last step has printed.
	printed string
}

// check returns errUnexpected with the text, unless ok.
func check(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("%w: %s", errUnexpected, fmt.Sprintf(format, args...))
}

func newDemo(root string, out io.Writer) *demo {
	file, ok := out.(interface{ Fd() uintptr })
	colour := ok && term.IsTerminal(int(file.Fd())) && os.Getenv("NO_COLOR") == ""
	return &demo{root: root, out: bufio.NewWriter(out), colour: colour}
}

func (d *demo) path(name string) string { return filepath.Join(d.root, name) }

func (d *demo) paint(colour int, text string) string {
	if !d.colour {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", colour, text)
}

// run runs all sections and always cleans up. Its error has been printed.
func (d *demo) run(ctx context.Context, btrfs, keep bool) (failure error) {
	runtime.LockOSThread() // See startDriver.
	defer runtime.UnlockOSThread()

	began := time.Now()
	fmt.Fprintf(d.out, "Everything happens in %s\n", d.root)

	defer func() {
		if failure != nil {
			fmt.Fprintln(d.out, "\nCleaning up …")
		}
		failure = errors.Join(failure, d.cleanUp(context.WithoutCancel(ctx), keep))
		outcome := d.paint(green, fmt.Sprintf("%d steps, all held", d.steps))
		if failure != nil {
			outcome = d.paint(red, fmt.Sprintf("stopped after %d steps", d.steps))
		}
		fmt.Fprintf(d.out, "\n%s, %.1f s\n", outcome, time.Since(began).Seconds())
		failure = cmp.Or(failure, d.out.Flush())
	}()

	if err := d.prepare(); err != nil {
		return err
	}

	for _, section := range sections(btrfs) {
		fmt.Fprintf(d.out, "\n%s\n", d.paint(bold, section.title))
		for _, step := range section.steps {
			if err := d.runStep(ctx, step); err != nil {
				return err
			}
		}
	}
	return nil
}

// prepare makes the directories of the commands.
func (d *demo) prepare() error {
	self, err := os.Executable()

	return cmp.Or(err, os.MkdirAll(d.path("bin"), dirMode), os.MkdirAll(d.path("kubelet"), dirMode),
		os.Symlink(self, d.path("bin/touchstone")))
}

// runStep runs and prints one step.
func (d *demo) runStep(ctx context.Context, step step) error {
	limited, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()

	began := time.Now()
	text, err := d.do(limited, step)
	took := fmt.Sprintf("%7.1f ms", time.Since(began).Seconds()*1000)

	if ctx.Err() != nil {
		return errInterrupted // The step did not fail.
	}

	d.steps++
	d.printed = text
	mark := d.paint(green, "✓")

	if err != nil {
		err = d.driver.explain(err)
		mark, text = d.paint(red, "✗"), strings.TrimSpace(text+"\n"+err.Error())+"\nthe driver's log ends with:\n"+d.logTail()
	}

	fmt.Fprintf(d.out, "%3d %s %s  %s\n", d.steps, mark, d.paint(faint, took), d.paint(bold, step.command))

	for line := range strings.Lines(text) {
		fmt.Fprintf(d.out, "%20s%s\n", "", strings.TrimRight(line, "\n"))
	}

	if err != nil {
		return fmt.Errorf("step %d: %w", d.steps, err)
	}
	return d.out.Flush()
}

// do does what the step says, or runs its command, and returns what that prints.
func (d *demo) do(ctx context.Context, s step) (string, error) {
	if s.do != nil {
		return s.do(d, ctx)
	}

	command := exec.CommandContext(ctx, "sh", "-c", s.command)
	command.Dir = d.root
	// No TOUCHSTONE_*, which sets flags.
	command.Env = []string{
		"PATH=" + d.path("bin") + ":" + os.Getenv("PATH"), "K=" + d.path("kubelet"), "TOUCHSTONE_ENDPOINT=unix://" + d.path(socketName),
	}
	// A process group of its own, so that Ctrl-C at the terminal reaches only the demo.
	command.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return unix.Kill(-command.Process.Pid, unix.SIGKILL) }

	out, err := command.CombinedOutput()
	text := string(out)

	if s.fails {
		err = check(err != nil, "want: the command is refused")
	}

	matches, patternErr := regexp.MatchString(s.prints, text)

	return text, cmp.Or(err, patternErr, check(matches, "want: output that matches %s", s.prints),
		check(!s.same || text == d.printed, "want: the same output as before"))
}

// logTail returns the last lines of the driver's log.
func (d *demo) logTail() string {
	log, _ := os.ReadFile(d.path(logName))
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return strings.Join(lines[max(0, len(lines)-logTail):], "\n")
}

// cleanUp ends the driver, and then removes with system calls what is still mounted and
// attached: an interrupted call may have had its effect.
func (d *demo) cleanUp(ctx context.Context, keep bool) error {
	if err := d.driver.terminate(); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, cleanUpLimit)
	defer cancel()

	if err := removeRoot(ctx, d.root, keep); err != nil {
		return fmt.Errorf("clean up %s: %w", d.root, err)
	}
	if keep {
		fmt.Fprintf(d.out, "Kept: %s\n", d.root)
	}
	return nil
}

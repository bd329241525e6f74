package demo

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	defaultWidth = 120
	// minimumWidth and maximumWidth keep a duration near the text of its step.
	minimumWidth = 80
	maximumWidth = 132

	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	red   = "\x1b[31m"
	green = "\x1b[32m"
	plain = "\x1b[0m"
)

// report prints the steps. It keeps the first error of a write, which ends the demo but must
// not prevent its cleaning up.
type report struct {
	out    io.Writer
	colour bool
	width  int

	steps int
	began time.Time
	err   error // Of the first write that failed.
}

func newReport(out io.Writer) *report {
	r := &report{out: out, width: defaultWidth, began: time.Now()}

	if file, ok := out.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil {
			r.colour = os.Getenv("NO_COLOR") == ""
			if size.Col > 0 {
				r.width = min(max(int(size.Col), minimumWidth), maximumWidth)
			}
		}
	}
	return r
}

func (r *report) paint(colour, text string) string {
	if !r.colour {
		return text
	}
	return colour + text + plain
}

func (r *report) linef(format string, args ...any) {
	if _, err := fmt.Fprintf(r.out, format+"\n", args...); err != nil && r.err == nil {
		r.err = fmt.Errorf("print the steps: %w", err)
	}
}

func (r *report) section(title string) { r.linef("\n%s", r.paint(bold, title)) }

// notes prints lines that are not steps.
func (r *report) notes(lines ...string) {
	for _, line := range lines {
		r.linef("      %s", r.paint(dim, line))
	}
}

// step prints one line: number, mark, call with its key arguments, result, and the duration
// at the right margin. The result's further lines follow as notes.
func (r *report) step(call, with, got string, failure error, took time.Duration) {
	r.steps++

	mark := r.paint(green, "✓")
	if failure != nil {
		mark, got = r.paint(red, "✗"), strings.TrimPrefix(failure.Error(), call+": ")
	}
	got, more, hasMore := strings.Cut(got, "\n")

	text := strings.TrimRight(fmt.Sprintf("%-25s %s", call, with), " ")
	if got != "" {
		text = fmt.Sprintf("%-25s → %s", text, got)
	}

	clock := formatDuration(took)
	// 6 columns precede the text; at least one space precedes the duration.
	gap := max(1, r.width-6-utf8.RuneCountInString(text)-utf8.RuneCountInString(clock))
	text = strings.Replace(text, call, r.paint(bold, call), 1)

	r.linef("%3d %s %s%s%s", r.steps, mark, text, strings.Repeat(" ", gap), r.paint(dim, clock))
	if hasMore {
		r.notes(strings.Split(more, "\n")...)
	}
}

// summary prints the last line. The failure itself is printed above, and in the process's
// error.
func (r *report) summary(failure error) {
	text := fmt.Sprintf("%d steps, all held, %.1f s", r.steps, time.Since(r.began).Seconds())
	if failure == nil {
		r.linef("\n%s", r.paint(green, text))
	} else {
		r.linef("\n%s", r.paint(red, "stopped after "+strings.Replace(text, ", all held", "", 1)))
	}
}

func formatDuration(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.2f s ", d.Seconds())
	case d >= 100*time.Millisecond:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	default:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
	}
}

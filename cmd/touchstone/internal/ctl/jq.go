package ctl

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/internal/lab/jq"
)

// jqFlag is the flag --jq. Its program is nil if it is not given.
type jqFlag struct{ *jq.Program }

func (f *jqFlag) register(flags *pflag.FlagSet) {
	flags.Var(f, "jq", "print what this jq filter makes of each, instead, and leave out those of which it makes nothing, false or null")
}

func (f *jqFlag) String() string {
	if f.Program == nil {
		return ""
	}

	return f.Program.String()
}

// Set implements pflag.Value.
func (f *jqFlag) Set(text string) (err error) {
	f.Program, err = jq.Parse(text)

	return err //nolint:wrapcheck // pflag adds the flag and its value
}

// Type implements pflag.Value.
func (*jqFlag) Type() string { return "string" }

// printOutputs prints what a jq program makes of each, a line for each output, and returns how many there are.
// One for which it fails is left out, unless it fails for each.
func printOutputs[T any](
	ctx context.Context, p *printer, program *jq.Program, of []T, input func(T) (any, error),
) (printed int, err error) {
	var failures []error

	for _, each := range of {
		given, err := input(each)
		if err != nil {
			return printed, err
		}

		lines, err := program.Lines(ctx, given)

		switch {
		case errors.Is(err, jq.ErrLimit):
			return printed, err
		case err != nil:
			failures = append(failures, err)
		}

		for _, line := range lines {
			if _, err := fmt.Fprintln(p.out, line); err != nil {
				return printed, fmt.Errorf("print: %w", err)
			}

			printed++
		}
	}

	if len(failures) > 0 && len(failures) == len(of) {
		return printed, failures[0]
	}

	return printed, ctx.Err()
}

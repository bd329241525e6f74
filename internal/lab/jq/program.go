// Package jq runs jq programs over CSI messages and over what the lab has recorded: predicates of
// requests, filters of responses, filters of lists.
//
//   - Program is a compiled program; a run ends with its context, and after Limit.
//   - Check compares a program with the type of its input: a field that a message does not have, or a
//     value that a field cannot have, is an error before the first run.
//   - FromMessage and ToMessage convert messages: fields have the names of the spec, and numbers are
//     numbers.
package jq

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/itchyny/gojq"
)

// ErrProgram is wrapped by the error of a program that cannot be compiled, or does not fit its input.
var ErrProgram = errors.New("jq")

// ErrLimit is returned, with ErrProgram, for a run that is longer than Limit.
var ErrLimit = fmt.Errorf("%w: it runs for longer than %s", ErrProgram, Limit)

// ErrOutputs is returned, with ErrProgram, for no output and for several where one is wanted.
var ErrOutputs = fmt.Errorf("%w: one output is wanted", ErrProgram)

// Limit bounds the time of one run.
const Limit = 2 * time.Second

// Program is a compiled program. It is safe for concurrent use.
type Program struct {
	text      string
	variables []string
	query     *gojq.Query
	code      *gojq.Code
}

// Parse compiles a program, which may use the variables. Error: ErrProgram.
func Parse(text string, variables ...string) (*Program, error) {
	if strings.TrimSpace(text) == "" {
		return nil, fmt.Errorf("%w: the program is empty", ErrProgram)
	}

	query, err := gojq.Parse(text)
	if err != nil {
		return nil, syntaxError(text, err)
	}

	code, err := gojq.Compile(query, gojq.WithVariables(variables))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProgram, err)
	}

	return &Program{text, variables, query, code}, nil
}

// syntaxError adds the line to a mistake in a text of several lines.
func syntaxError(text string, err error) error {
	mistake, ok := errors.AsType[*gojq.ParseError](err)
	if !ok || !strings.Contains(strings.TrimSpace(text), "\n") {
		return fmt.Errorf("%w: %w", ErrProgram, err)
	}

	before := strings.TrimRight(text[:mistake.Offset], "\n")

	return fmt.Errorf("%w: line %d of the program: %w", ErrProgram, strings.Count(before, "\n")+1, err)
}

// String returns the text.
func (p *Program) String() string { return p.text }

// run yields what the program makes of an input, which it may change, and at last its error. The values are
// those of the variables.
func (p *Program) run(ctx context.Context, input any, values ...any) iter.Seq2[any, error] {
	return func(yield func(any, error) bool) {
		ctx, cancel := context.WithTimeoutCause(ctx, Limit, ErrLimit)
		defer cancel()

		for outputs := p.code.RunWithContext(ctx, input, values...); ; {
			output, more := outputs.Next()

			err, failed := output.(error)

			switch {
			case !more:
				return
			case failed && ctx.Err() != nil:
				err = context.Cause(ctx)
			case failed:
				err = fmt.Errorf("%w: %w", ErrProgram, err)
			}

			if !yield(output, err) || failed {
				return
			}
		}
	}
}

// Holds reports whether one of the outputs is neither false nor null. Errors: ErrProgram, ErrLimit, ctx's.
func (p *Program) Holds(ctx context.Context, input any, values ...any) (bool, error) {
	for output, err := range p.run(ctx, input, values...) {
		if err != nil || isTrue(output) {
			return err == nil, err
		}
	}

	return false, nil
}

// Assigns reports whether the program as a whole changes its input, as .name = "a" does.
func (p *Program) Assigns() bool {
	switch p.query.Op {
	case gojq.OpAssign, gojq.OpModify, gojq.OpUpdateAlt,
		gojq.OpUpdateAdd, gojq.OpUpdateSub, gojq.OpUpdateMul, gojq.OpUpdateDiv, gojq.OpUpdateMod:
		return true
	default:
		return false
	}
}

func isTrue(output any) bool { return output != nil && output != false }

// Apply returns the only output. Errors: ErrProgram, ErrOutputs, ErrLimit, ctx's.
func (p *Program) Apply(ctx context.Context, input any, values ...any) (any, error) {
	var outputs []any

	for output, err := range p.run(ctx, input, values...) {
		if err != nil {
			return nil, err
		}

		if outputs = append(outputs, output); len(outputs) > 1 {
			return nil, fmt.Errorf("%w, and there are several", ErrOutputs)
		}
	}

	if len(outputs) == 0 {
		return nil, fmt.Errorf("%w, and there is none; . is the input as it is", ErrOutputs)
	}

	return outputs[0], nil
}

// Lines returns each output that is neither false nor null as JSON. Errors: ErrProgram, ctx's.
func (p *Program) Lines(ctx context.Context, input any) ([]string, error) {
	var lines []string

	for output, err := range p.run(ctx, input) {
		if err != nil {
			return nil, err
		}

		if !isTrue(output) {
			continue
		}

		line, _ := gojq.Marshal(output) // each output has a JSON text
		lines = append(lines, string(line))
	}

	return lines, nil
}

// FromJSON returns the input for a value of Go, as encoding/json writes it.
func FromJSON(value any) (input any, err error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode the input: %w", err)
	}

	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // an int64 is not rounded

	err = decoder.Decode(&input)

	return input, err
}

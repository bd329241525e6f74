package jq

import (
	"fmt"
	"strings"

	"github.com/itchyny/gojq"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Types are the types of variables; nil is an unknown one.
type Types map[string]protoreflect.MessageDescriptor

// Check compares the program with the type of its input and of its variables. It returns the first mistake
// that is certain: a field that a message does not have, or a comparison with a value that a field cannot
// have. What a program computes otherwise has an unknown type, and is not checked. Error: ErrProgram.
func (p *Program) Check(input protoreflect.MessageDescriptor, variables Types) error {
	c := &checker{variables: map[string]*shape{}, defined: map[string]bool{}, missing: map[string]bool{}}

	for _, name := range p.variables {
		message, has := variables[name]
		c.missing[name] = !has

		if message != nil {
			c.variables[name] = &shape{message: message}
		}
	}

	c.query(p.query, &shape{message: input})

	return c.mistake
}

// shape is what is known of a value. Exactly one field is set: a message, the element of a list, the value of a map,
// or the field of a scalar. Nothing is known of a value whose shape is nil.
type shape struct {
	message        protoreflect.MessageDescriptor
	element, value *shape
	scalar         protoreflect.FieldDescriptor
}

func shapeOf(field protoreflect.FieldDescriptor) *shape {
	switch {
	case field.IsMap():
		return &shape{value: shapeOfValue(field.MapValue())}
	case field.IsList():
		return &shape{element: shapeOfValue(field)}
	default:
		return shapeOfValue(field)
	}
}

func shapeOfValue(field protoreflect.FieldDescriptor) *shape {
	message := field.Message()

	switch {
	case message == nil:
		return &shape{scalar: field}
	case wrapped(message) != nil:
		return &shape{scalar: wrapped(message)}
	case message.FullName() == (&timestamppb.Timestamp{}).ProtoReflect().Descriptor().FullName():
		return nil // a text
	default:
		return &shape{message: message}
	}
}

// checker finds the first mistake of a program.
type checker struct {
	variables map[string]*shape
	// missing are the variables that have no value here, and defined the functions of the program itself.
	missing, defined map[string]bool
	mistake          error
}

func (c *checker) fail(format string, args ...any) *shape {
	if c.mistake == nil {
		c.mistake = fmt.Errorf("%w: %s", ErrProgram, fmt.Sprintf(format, args...))
	}

	return nil
}

// query returns the shape of the outputs for inputs of a shape.
func (c *checker) query(q *gojq.Query, in *shape) *shape {
	if q == nil {
		return nil
	}

	for _, each := range q.FuncDefs {
		c.defined[each.Name] = true
		c.query(each.Body, nil)
	}

	if q.Term != nil {
		return c.term(q.Term, in)
	}

	left := c.query(q.Left, in)

	if q.Op == gojq.OpPipe {
		for _, each := range q.Patterns {
			if each.Name != "" {
				c.variables[each.Name] = left
			}
		}

		if len(q.Patterns) > 0 {
			left = in
		}
	}

	switch q.Op {
	case gojq.OpPipe:
		return c.query(q.Right, left)
	case gojq.OpModify:
		c.query(q.Right, left)

		return in
	default:
		return c.binary(q, left, c.query(q.Right, in), in)
	}
}

// binary is the shape of what an operator makes of two values of the same input.
func (c *checker) binary(q *gojq.Query, left, right, in *shape) *shape {
	switch q.Op {
	case gojq.OpAssign, gojq.OpUpdateAdd, gojq.OpUpdateSub, gojq.OpUpdateMul, gojq.OpUpdateDiv, gojq.OpUpdateMod, gojq.OpUpdateAlt:
		return in
	case gojq.OpComma, gojq.OpAlt, gojq.OpAdd:
		return common(left, right)
	case gojq.OpEq, gojq.OpNe, gojq.OpLt, gojq.OpLe, gojq.OpGt, gojq.OpGe:
		c.compare(left, q.Right)
		c.compare(right, q.Left)

		return nil
	default:
		return nil
	}
}

// common is the shape of a value that is one of two.
func common(left, right *shape) *shape {
	if left == nil || right == nil || *left != *right {
		return nil
	}

	return left
}

func (c *checker) term(t *gojq.Term, in *shape) *shape {
	found := c.base(t, in)

	for _, each := range t.SuffixList {
		switch {
		case each.Iter:
			found = c.each(found)
		case each.Index != nil:
			found = c.index(found, each.Index, in)
		}
	}

	return found
}

// base is the shape of a term without its suffixes.
func (c *checker) base(t *gojq.Term, in *shape) *shape {
	switch t.Type {
	case gojq.TermTypeIdentity:
		return in
	case gojq.TermTypeIndex:
		return c.index(in, t.Index, in)
	case gojq.TermTypeFunc:
		return c.call(t.Func, in)
	case gojq.TermTypeQuery:
		return c.query(t.Query, in)
	case gojq.TermTypeLabel:
		return c.query(t.Label.Body, in)
	case gojq.TermTypeIf:
		return c.branches(t.If, in)
	case gojq.TermTypeArray:
		if element := c.query(t.Array.Query, in); element != nil {
			return &shape{element: element}
		}

		return nil
	default:
		c.parts(t, in)

		return nil
	}
}

// parts checks the programs within a term whose own shape is not known. Those that get an error or an
// accumulator have an unknown input.
func (c *checker) parts(t *gojq.Term, in *shape) {
	c.text(t.Str, in)

	switch {
	case t.Object != nil:
		for _, each := range t.Object.KeyVals {
			if each.Val == nil && each.Key != "" && !strings.HasPrefix(each.Key, "$") {
				c.get(in, each.Key)
			}

			c.query(each.KeyQuery, in)
			c.query(each.Val, in)
		}
	case t.Unary != nil:
		c.term(t.Unary.Term, in)
	case t.Try != nil:
		c.query(t.Try.Body, in)
		c.query(t.Try.Catch, nil)
	case t.Reduce != nil:
		c.query(t.Reduce.Query, in)
		c.query(t.Reduce.Start, in)
		c.query(t.Reduce.Update, nil)
	case t.Foreach != nil:
		c.query(t.Foreach.Query, in)
		c.query(t.Foreach.Start, in)
		c.query(t.Foreach.Update, nil)
		c.query(t.Foreach.Extract, nil)
	}
}

func (c *checker) branches(t *gojq.If, in *shape) *shape {
	c.query(t.Cond, in)
	found := c.query(t.Then, in)

	for _, each := range t.Elif {
		c.query(each.Cond, in)
		found = common(found, c.query(each.Then, in))
	}

	if t.Else == nil {
		return common(found, in)
	}

	return common(found, c.query(t.Else, in))
}

func (c *checker) text(t *gojq.String, in *shape) {
	if t == nil {
		return
	}

	for _, each := range t.Queries {
		c.query(each, in)
	}
}

// index is the shape of an element or a field. Indexes are computed of in.
func (c *checker) index(of *shape, by *gojq.Index, in *shape) *shape {
	c.query(by.Start, in)
	c.query(by.End, in)
	c.text(by.Str, in)

	key, known := by.Name, by.Name != ""
	if by.Str != nil {
		key, known = by.Str.Str, len(by.Str.Queries) == 0
	} else if !known {
		key, known = literal(by.Start).(string)
	}

	switch {
	case known:
		return c.get(of, key)
	case by.IsSlice:
		return of
	default:
		return c.each(of)
	}
}

// get is the shape of a field, or of a key's value.
func (c *checker) get(of *shape, name string) *shape {
	switch {
	case of == nil:
		return nil
	case of.message != nil:
		field := of.message.Fields().ByName(protoreflect.Name(name))
		if field == nil {
			return c.fail("%s has no field %s", of.message.Name(), name)
		}

		return shapeOf(field)
	case of.value != nil:
		return of.value
	case of.element != nil:
		return c.fail(".%s of a list; .[] are its elements", name)
	default:
		return c.fail("%s is not a message, and has no field %s", of.scalar.Name(), name)
	}
}

// each is the shape of an element or of a value.
func (c *checker) each(of *shape) *shape {
	switch {
	case of == nil:
		return nil
	case of.element != nil:
		return of.element
	default:
		return of.value
	}
}

// call is the shape of a call of a variable or of a function that is built in.
func (c *checker) call(f *gojq.Func, in *shape) *shape {
	if strings.HasPrefix(f.Name, "$") {
		if c.missing[f.Name] {
			return c.fail("%s has no value here", f.Name)
		}

		return c.variables[f.Name]
	}

	// What the arguments get, and what the call returns.
	argument, output := (*shape)(nil), (*shape)(nil)

	if !c.defined[f.Name] {
		switch f.Name {
		case "select", "del":
			argument, output = in, in
		case "map_values", "sort_by", "unique_by":
			argument, output = c.each(in), in
		case "sort", "unique", "reverse":
			output = in
		case "isempty", "limit", "path":
			argument = in
		case "any", "all":
			argument = c.each(in)

			if len(f.Args) > 1 {
				c.query(f.Args[1], c.query(f.Args[0], in))

				return nil
			}
		case "map":
			if mapped := c.query(f.Args[0], c.each(in)); mapped != nil {
				return &shape{element: mapped}
			}

			return nil
		case "first", "last":
			if len(f.Args) == 0 {
				return c.each(in)
			}

			return c.query(f.Args[0], in)
		}
	}

	for _, each := range f.Args {
		c.query(each, argument)
	}

	return output
}

// literal returns the value of a query that is a constant, nil for others.
func literal(q *gojq.Query) any {
	if q == nil || q.Term == nil || len(q.Term.SuffixList) > 0 {
		return nil
	}

	switch t := q.Term; {
	case t.Type == gojq.TermTypeString && len(t.Str.Queries) == 0:
		return t.Str.Str
	case t.Type == gojq.TermTypeNumber:
		return 0
	case t.Type == gojq.TermTypeTrue || t.Type == gojq.TermTypeFalse:
		return true
	default:
		return nil
	}
}

// compare compares a scalar with a constant. Enums are texts or, where the spec does not have them, numbers.
func (c *checker) compare(of *shape, with *gojq.Query) {
	value := literal(with)
	if of == nil || of.scalar == nil || value == nil {
		return
	}

	text, isText := value.(string)
	_, isBool := value.(bool)

	switch kind := of.scalar.Kind(); {
	case kind == protoreflect.EnumKind:
		if isText && of.scalar.Enum().Values().ByName(protoreflect.Name(text)) == nil {
			c.fail("%s is no value of %s", with, of.scalar.Enum().Name())
		}
	case isText != (kind == protoreflect.StringKind || kind == protoreflect.BytesKind), isBool != (kind == protoreflect.BoolKind):
		c.fail("%s is of type %s, and never %s", of.scalar.Name(), kind, with)
	}
}

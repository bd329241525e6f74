package ctl

import "iter"

// The names that several tables, and several groups of commands, have.
const (
	nameColumn   = "NAME"
	objectColumn = "OBJECT"
	listName     = "list"
	getName      = "get"
)

// columns describe the objects of one kind, as columns of a table and as lines of a sheet.
type columns[T any] []column[T]

// column is a property of objects.
type column[T any] struct {
	// header is the title in tables, and label in sheets. A property is only where it has a title.
	header, label string
	// text is empty for an unknown value: tables have a dash for it, sheets omit it.
	text func(T) string
	// wide is true for a column that only `-o wide` shows.
	wide bool
}

// table has a header, and a row for each object.
func (c columns[T]) table(format outputFormat, objects ...T) [][]string {
	rows := make([][]string, 1+len(objects))

	for _, each := range c {
		if each.header == "" || each.wide && format != outputWide {
			continue
		}

		rows[0] = append(rows[0], each.header)
		for i, object := range objects {
			rows[1+i] = append(rows[1+i], orDash(each.text(object)))
		}
	}

	return rows
}

// sheet has a line for each property of one object.
func (c columns[T]) sheet(object T) [][]string {
	var rows [][]string

	for _, each := range c {
		if text := each.text(object); each.label != "" && text != "" {
			rows = append(rows, []string{each.label, text})
		}
	}

	return rows
}

// collect returns the elements of a list that ends with its first error.
func collect[E any](list iter.Seq2[E, error]) (elements []E, err error) {
	for each, err := range list {
		if err != nil {
			return nil, err
		}

		elements = append(elements, each)
	}

	return elements, nil
}

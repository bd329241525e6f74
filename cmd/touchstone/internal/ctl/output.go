package ctl

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/touchstone-csi/touchstone/internal/lab/jq"
)

const (
	columnGap = 2
	indent    = "  "
	// dash is printed for a missing value in a table.
	dash = "-"

	// The parts of a driver: they are keys of documents, words of tables, and the views of a health report.
	controllerPart = "controller"
	groupsPart     = "group_controller"
	nodePart       = "node"

	// The names that several tables, and several groups of commands, have.
	nameColumn   = "NAME"
	objectColumn = "OBJECT"
	listName     = "list"
	getName      = "get"
	createName   = "create"
)

type printer struct {
	*settings

	out   io.Writer
	names knownNames
}

// answers are the answers of several calls, which are printed as one JSON object.
type answers map[string]any

// structured reports whether programs read the output.
func (p *printer) structured() bool { return p.output == outputJSON || p.output == outputYAML }

// show prints the answer as JSON or YAML, the rows as a table, or for each id the name that its object
// has, a line each. It returns the error of the call, too, and shows nothing if that has no answer.
func (p *printer) show(failure error, answer any, rows [][]string, ids ...string) error {
	if message, ok := answer.(proto.Message); answer == nil || ok && !message.ProtoReflect().IsValid() {
		return failure
	}

	switch {
	case p.structured():
		return errors.Join(failure, p.document(answer))
	case p.output != outputName:
		return errors.Join(failure, p.table(rows))
	}

	return errors.Join(failure, p.table(mapped(ids, func(id string) []string { return []string{p.names.of(id)} })))
}

var errNoNames = errors.New("-o name is for commands about volumes and other objects: choose table, json or yaml")

// refuseNames refuses -o name of a command whose answer is about no object.
func (s *settings) refuseNames() error {
	if s.output == outputName {
		return usage(errNoNames)
	}

	return nil
}

func (p *printer) table(rows [][]string) error {
	table := tabwriter.NewWriter(p.out, 0, 0, columnGap, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = Printable(cell)
		}

		fmt.Fprintln(table, strings.Join(row, "\t"))
	}

	return printed(table.Flush())
}

func (p *printer) printLine(line string) error {
	_, err := fmt.Fprintln(p.out, line)

	return printed(err)
}

// printed names the step of an error of the output.
func printed(err error) error {
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}

	return nil
}

// maxCell is the most bytes printed of one value: a table pads every row to its longest cell.
const maxCell = 4096

// Printable returns a driver's text in a form that is safe for a terminal: quoted if it
// contains control characters, and truncated after maxCell bytes.
func Printable(text string) string {
	ellipsis := ""
	if len(text) > maxCell {
		text, ellipsis = strings.ToValidUTF8(text[:maxCell], ""), "…"
	}

	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		text = strconv.Quote(text)
	}

	return text + ellipsis
}

// document prints YAML, or indented JSON: protojson varies its white space on purpose.
func (p *printer) document(answer any) error {
	var pretty bytes.Buffer

	text, err := p.encodeNamed(answer)

	switch {
	case err != nil:
	case p.output == outputYAML:
		text, err = yaml.JSONToYAML(text)
		pretty.Write(text)
	default:
		err = json.Indent(&pretty, text, "", indent)
		pretty.WriteByte('\n')
	}

	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}

	_, err = pretty.WriteTo(p.out)

	return printed(err)
}

// encodeNamed returns the answer as JSON, with the names of its objects beside their ids.
func (p *printer) encodeNamed(answer any) ([]byte, error) {
	text, err := encode(answer)
	if err != nil || len(p.names) == 0 {
		return text, err
	}

	document, err := jq.FromJSON(text)
	if err != nil {
		return nil, err
	}

	p.names.addTo(document)

	return json.Marshal(document)
}

// encode uses the spec's field names and emits all fields of messages, so that programs can
// rely on them.
func encode(answer any) (text json.RawMessage, err error) {
	switch answer := answer.(type) {
	case proto.Message:
		return protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(answer)
	case answers:
		documents := map[string]json.RawMessage{}
		for name, each := range answer {
			if documents[name], err = encode(each); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		return json.Marshal(documents)
	default:
		return json.Marshal(answer)
	}
}

func formatBytes(count int64) string {
	if count < 0 {
		return strconv.FormatInt(count, 10) // Invalid, but shown as the driver returned it.
	}

	return humanize.IBytes(uint64(count))
}

func orDash(text string) string { return cmp.Or(text, dash) }

func formatPairs(m map[string]string) string {
	return orDash(strings.Join(mapped(slices.Sorted(maps.Keys(m)), func(key string) string { return key + "=" + m[key] }), ","))
}

// formatTopologies joins alternatives with a bar.
func formatTopologies(all []*csi.Topology) string {
	return orDash(strings.Join(mapped(all, func(one *csi.Topology) string { return formatPairs(one.GetSegments()) }), " | "))
}

// columns describe the objects of one kind, as columns of a table and as lines of a sheet.
type columns[T any] []column[T]

// column is a property of objects.
type column[T any] struct {
	// header is the title in tables, and label in sheets. A property is only where it has a title.
	header, label string
	// text is empty for an unknown value: tables have a dash for it, sheets omit it.
	text func(T) string
	// wide is true for a column that only `-o wide` shows, and id for the one of which -o name makes names.
	wide, id bool
}

// show shows the objects of an answer, unless the call has failed.
func (c columns[T]) show(p *printer, failure error, answer any, objects ...T) error {
	if failure != nil {
		return failure
	}

	var ids []string
	if at := slices.IndexFunc(c, func(each column[T]) bool { return each.id }); at >= 0 {
		ids = mapped(objects, c[at].text)
	}

	return p.show(nil, answer, c.table(p.output, objects...), ids...)
}

// table has a header, and a row for each object.
func (c columns[T]) table(format string, objects ...T) [][]string {
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

// mapped returns what a function makes of each element.
func mapped[E, R any](elements []E, of func(E) R) []R {
	results := make([]R, len(elements))
	for i, each := range elements {
		results[i] = of(each)
	}

	return results
}

// titled puts a line above a sheet.
func titled(title string, rows [][]string) [][]string { return append([][]string{{title}}, rows...) }

// forEach does something for each word, goes on after an error, and adds the word to it.
func forEach(words []string, do func(word string) error) error {
	return errors.Join(mapped(words, func(word string) error {
		err := do(word)
		if err != nil {
			err = fmt.Errorf("%s: %w", word, err)
		}

		return err
	})...)
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

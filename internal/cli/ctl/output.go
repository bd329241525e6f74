package ctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
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
)

const (
	columnGap = 2
	indent    = "  "
	// dash is printed for a missing value in a table.
	dash = "-"

	// Keys of the services in documents and tables with several services' answers.
	keyController = "controller"
	keyGroups     = "group_controller"
	keyNode       = "node"
)

type printer struct {
	out    io.Writer
	format outputFormat
	watch  bool
}

// answers are the answers of several calls, which are printed as one JSON object.
type answers map[string]any

// structured reports whether programs read the output.
func (p *printer) structured() bool { return p.format == outputJSON || p.format == outputYAML }

// show prints the answer as JSON or YAML, the rows as a table, or the names, if there are any, a
// line each.
func (p *printer) show(answer any, rows [][]string, named ...string) error {
	switch {
	case p.format == outputName && len(named) > 0:
		rows = nil
		for _, name := range named {
			rows = append(rows, []string{name})
		}

		return p.table(rows)
	case !p.structured():
		return p.table(rows)
	}

	document, err := encode(answer)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}

	return p.document(document)
}

// listing is a table of objects with names.
type listing struct {
	header []string
	// wide is the number of columns at the end that only `-o wide` shows.
	wide  int
	names []string
	rows  [][]string
}

func (l *listing) add(name string, row []string) {
	l.names, l.rows = append(l.names, name), append(l.rows, row)
}

// list is show for several objects.
func (p *printer) list(answer any, table *listing) error {
	shown := len(table.header)
	if p.format != outputWide {
		shown -= table.wide
	}

	rows := make([][]string, 0, 1+len(table.rows))
	rows = append(rows, table.header[:shown])

	for _, row := range table.rows {
		rows = append(rows, row[:shown])
	}

	if p.format == outputName && len(table.names) == 0 {
		return nil
	}

	return p.show(answer, rows, table.names...)
}

func (p *printer) table(rows [][]string) error {
	table := tabwriter.NewWriter(p.out, 0, 0, columnGap, ' ', 0)
	for _, row := range rows {
		cells := make([]string, 0, len(row))
		for _, cell := range row {
			cells = append(cells, Printable(cell))
		}

		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}

	if err := table.Flush(); err != nil {
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

// document prints indented JSON. protojson varies its white space on purpose.
func (p *printer) document(text []byte) error {
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, text, "", indent); err != nil {
		return fmt.Errorf("indent the answer: %w", err)
	}

	pretty.WriteByte('\n')

	if p.format == outputYAML {
		converted, err := yaml.JSONToYAML(pretty.Bytes())
		if err != nil {
			return fmt.Errorf("convert the answer: %w", err)
		}

		pretty = *bytes.NewBuffer(converted)
	}

	if _, err := pretty.WriteTo(p.out); err != nil {
		return fmt.Errorf("print: %w", err)
	}

	return nil
}

// encode uses the spec's field names and emits all fields of messages, so that programs can
// rely on them.
func encode(answer any) (json.RawMessage, error) {
	switch answer := answer.(type) {
	case proto.Message:
		return protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(answer)
	case answers:
		documents := make(map[string]json.RawMessage, len(answer))
		for name, each := range answer {
			document, err := encode(each)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			documents[name] = document
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

func orDash(text string) string {
	if text == "" {
		return dash
	}

	return text
}

func formatPairs(m map[string]string) string {
	all := make([]string, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, key+"="+m[key])
	}

	return orDash(strings.Join(all, ","))
}

// formatTopologies joins alternatives with a bar.
func formatTopologies(all []*csi.Topology) string {
	texts := make([]string, 0, len(all))
	for _, one := range all {
		texts = append(texts, formatPairs(one.GetSegments()))
	}

	return orDash(strings.Join(texts, " | "))
}

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
)

const (
	columnGap = 2
	indent    = "  "
	// nothing stands where a table has no value.
	dash = "-"

	// The services, where one document or table has the answers of both.
	keyController = "controller"
	keyGroups     = "group_controller"
	keyNode       = "node"
)

type printer struct {
	out    io.Writer
	format outputFormat
}

// show prints the answer itself to programs, the rows to people.
func (p *printer) show(answer proto.Message, rows [][]string) error {
	if p.format == outputJSON {
		document, err := encode(answer)
		if err != nil {
			return err
		}

		return p.document(document)
	}

	return p.table(rows)
}

// showAll is show for what took several calls; documents become one object.
func (p *printer) showAll(documents map[string]json.RawMessage, rows [][]string) error {
	if p.format != outputJSON {
		return p.table(rows)
	}

	whole, err := json.Marshal(documents)
	if err != nil {
		return fmt.Errorf("encode the answers: %w", err)
	}

	return p.document(whole)
}

// showDocument is show for an answer that is JSON already.
func (p *printer) showDocument(document json.RawMessage, rows [][]string) error {
	if p.format != outputJSON {
		return p.table(rows)
	}

	return p.document(document)
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

// maxCell bounds what is printed of one value, in bytes: a table pads each of its rows.
const maxCell = 4096

// Printable returns a text of a driver as one that a terminal only shows: quoted, if
// it has control characters, and cut where it is too long for people.
func Printable(text string) string {
	cut := ""
	if len(text) > maxCell {
		text, cut = strings.ToValidUTF8(text[:maxCell], ""), "…"
	}

	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		text = strconv.Quote(text)
	}

	return text + cut
}

// document prints JSON with one form of white space: protojson varies its own
// on purpose.
func (p *printer) document(text []byte) error {
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, text, "", indent); err != nil {
		return fmt.Errorf("indent the answer: %w", err)
	}

	pretty.WriteByte('\n')

	if _, err := pretty.WriteTo(p.out); err != nil {
		return fmt.Errorf("print: %w", err)
	}

	return nil
}

// encode names fields as the spec does and leaves none out, so that a program
// can rely on their being there.
func encode(answer proto.Message) (json.RawMessage, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(answer)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}

	return text, nil
}

func formatBytes(count int64) string {
	if count < 0 {
		return strconv.FormatInt(count, 10) // A driver's mistake is shown as it is.
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

// places writes alternatives with a bar between.
func formatTopologies(all []*csi.Topology) string {
	texts := make([]string, 0, len(all))
	for _, one := range all {
		texts = append(texts, formatPairs(one.GetSegments()))
	}

	return orDash(strings.Join(texts, " | "))
}

package ctl

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
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
	*settings

	out   io.Writer
	names knownNames
}

// answers are the answers of several calls, which are printed as one JSON object.
type answers map[string]any

// structured reports whether programs read the output.
func (p *printer) structured() bool { return p.output == outputJSON || p.output == outputYAML }

// answer shows the answer of a call, if there is one, and returns the call's error.
func (p *printer) answer(answer proto.Message, failure error, rows [][]string, ids ...string) error {
	if !answer.ProtoReflect().IsValid() {
		return failure
	}

	return errors.Join(failure, p.show(answer, rows, ids...))
}

// show prints the answer as JSON or YAML, the rows as a table, or for each id the name that its object
// has, a line each. Nil ids are a usage error then.
func (p *printer) show(answer any, rows [][]string, ids ...string) error {
	switch {
	case p.structured():
		return p.document(answer)
	case p.output != outputName:
		return p.table(rows)
	case ids == nil:
		return usage(errNoNames)
	}

	rows = make([][]string, len(ids))
	for i, id := range ids {
		rows[i] = []string{p.names.of(id)}
	}

	return p.table(rows)
}

// errNoNames is returned for -o name of a command whose answer is about no object.
var errNoNames = errors.New("-o name is for commands about volumes and other objects: choose table, json or yaml")

func (p *printer) table(rows [][]string) error {
	table := tabwriter.NewWriter(p.out, 0, 0, columnGap, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = Printable(cell)
		}

		fmt.Fprintln(table, strings.Join(row, "\t"))
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

// document prints YAML, or indented JSON: protojson varies its white space on purpose.
func (p *printer) document(answer any) error {
	text, err := p.encodeNamed(answer)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}

	var pretty bytes.Buffer

	if p.output == outputYAML {
		text, err = yaml.JSONToYAML(text)
		pretty.Write(text)
	} else {
		err = json.Indent(&pretty, text, "", indent)
		pretty.WriteByte('\n')
	}

	if err != nil {
		return fmt.Errorf("convert the answer: %w", err)
	}

	if _, err := pretty.WriteTo(p.out); err != nil {
		return fmt.Errorf("print: %w", err)
	}

	return nil
}

// encodeNamed returns the answer as JSON, with the names of its objects beside their ids.
func (p *printer) encodeNamed(answer any) ([]byte, error) {
	text, err := encode(answer)
	if err != nil || len(p.names) == 0 {
		return text, err
	}

	var document any

	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()

	if err := decoder.Decode(&document); err != nil {
		return nil, err
	}

	p.names.addTo(document)

	return json.Marshal(document)
}

// encode uses the spec's field names and emits all fields of messages, so that programs can
// rely on them.
func encode(answer any) (json.RawMessage, error) {
	switch answer := answer.(type) {
	case proto.Message:
		return protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(answer)
	case answers:
		documents := map[string]json.RawMessage{}
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

func orDash(text string) string { return cmp.Or(text, dash) }

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

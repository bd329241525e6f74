package manifests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

const tableHeader = `# Chart touchstone

Installs the driver with Kubernetes' sidecars. [docs/install.md](../../../docs/install.md) leads
through an installation, [deploy/README.md](../../README.md) says which file of [values/](values/)
is for which kind of cluster. Values are checked against [values.schema.json](values.schema.json).

[docs/install.md](../../../docs/install.md#the-chart-beside-those-of-other-drivers) has them beside
those of other drivers' charts.

## One controller

The controller is one pod, without leader election, and there is no value for more. A pool has one
controller: its state is in files beside the pool, and the driver refuses to be the second one
(` + "`controller.lock`" + `). A lease of the API server would not keep a former leader from writing to
them; the StatefulSet does: it starts the next pod only when the last one is gone. Volumes in use do
not need the controller: while it is replaced, creating, deleting, attaching and expanding wait for
it ([docs/upgrade.md](../../../docs/upgrade.md)). When its node fails:
[docs/multi-node.md](../../../docs/multi-node.md#when-a-node-fails).

## Values

Rendered from [values.yaml](values.yaml) by ` + "`make manifests`" + `.

| value | default | |
|---|---|---|
`

// ValuesTable returns the chart's README.md: a row for each value, with its comment.
func ValuesTable(chart string) (string, error) {
	text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return "", fmt.Errorf("read values: %w", err)
	}

	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return "", fmt.Errorf("values of chart %s: %w", chart, err)
	}

	var table strings.Builder

	table.WriteString(tableHeader)

	if err := addRows(&table, "", document.Content[0]); err != nil {
		return "", fmt.Errorf("values of chart %s: %w", chart, err)
	}

	return table.String(), nil
}

// addRows adds the values of a mapping. One with a comment of its own whose members have none,
// such as the defaults of a class, is one row.
func addRows(table *strings.Builder, parent string, mapping *yaml.Node) error {
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name := parent + key.Value
		comment := firstParagraph(key.HeadComment) + firstParagraph(key.LineComment) + firstParagraph(value.LineComment)

		if value.Kind == yaml.MappingNode && len(value.Content) > 0 && value.Style != yaml.FlowStyle {
			if comment != "" {
				fmt.Fprintf(table, "| **%s** | | %s |\n", name, comment)
			}

			if err := addRows(table, name+".", value); err != nil {
				return err
			}

			continue
		}

		var content any
		if err := value.Decode(&content); err != nil {
			return err
		}

		shown, err := json.Marshal(content)
		if err != nil {
			return err
		}

		fmt.Fprintf(table, "| %s | `%s` | %s |\n", name, shown, comment)
	}

	return nil
}

// firstParagraph returns a comment's text up to its first empty line, on one line.
func firstParagraph(comment string) string {
	var lines []string

	for line := range strings.Lines(comment) {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#"))
		if line == "" {
			break
		}

		lines = append(lines, line)
	}

	return strings.ReplaceAll(strings.Join(lines, " "), "|", `\|`)
}

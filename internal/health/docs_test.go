package health_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// TestEveryReasonIsDocumented wants a section of its own for each reason, in the
// order of Reasons, and in it all that an administrator has to know.
func TestEveryReasonIsDocumented(t *testing.T) {
	t.Parallel()

	text, err := os.ReadFile("../../docs/volume-health.md")
	require.NoError(t, err)

	sections := map[string]string{}
	order := []health.Reason{}

	for _, section := range strings.Split(string(text), "\n### ")[1:] {
		name, body, _ := strings.Cut(section, "\n")
		body, _, _ = strings.Cut(body, "\n## ")
		sections[name] = body
		order = append(order, health.Reason(name))
	}

	require.Equal(t, health.Reasons(), order)

	for _, reason := range health.Reasons() {
		body := sections[string(reason)]

		for _, part := range []string{"\n- **Found** by ", "\n- **Do**: ", "\n- **Goes** "} {
			require.Contains(t, body, part, reason)
		}
	}
}

package operation_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/test/await"
)

// TestJoinedCallsAreLinked: the operation is a child of the call that began it, and the call that
// joined it has a link to it.
func TestJoinedCallsAreLinked(t *testing.T) {
	t.Parallel()

	recorder := tracetest.NewSpanRecorder()
	tracer := trace.NewTracerProvider(trace.WithSpanProcessor(recorder)).Tracer("test")
	group := operation.NewGroup()
	call := operation.Call{Key: "volume a", Method: "NodeStageVolume"}
	begun, release := make(chan struct{}), make(chan struct{})
	ends := make(chan error, 2)

	do := func(name string) {
		ctx, span := tracer.Start(t.Context(), name)

		_, err := operation.Do(ctx, group, call, func(context.Context) (int, error) {
			close(begun)
			<-release

			return 0, errors.New("refused")
		})

		span.End()
		ends <- err
	}

	go do("first")
	await.Receive(t, begun, "the operation to begin")

	go do("second")
	require.Eventually(t, func() bool {
		for _, each := range recorder.Started() {
			if each.Name() == "second" && len(each.Links()) == 1 {
				return true
			}
		}

		return false
	}, waitLimit, pollInterval, "want: the joined call is linked to the operation")
	close(release)

	require.Error(t, await.Receive(t, ends, "one caller"), "want: the operation's failure reaches one caller")
	require.Error(t, await.Receive(t, ends, "the other caller"), "want: the operation's failure reaches the other caller")

	spans := map[string]trace.ReadOnlySpan{}
	for _, each := range recorder.Ended() {
		spans[each.Name()] = each
	}

	working := spans["operation NodeStageVolume"]
	require.Equal(t, spans["first"].SpanContext().SpanID(), working.Parent().SpanID())
	require.Equal(t, working.SpanContext().SpanID(), spans["second"].Links()[0].SpanContext.SpanID())
	require.Equal(t, "refused", working.Status().Description)
}

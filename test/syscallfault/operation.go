package syscallfault

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/child"
)

// serving marks the process that ServeIfAsked runs operations in.
const serving = "TOUCHSTONE_TEST_OPERATIONS"

// Operation prepares something in a directory, and returns what is made to fail and how it ends. It
// runs in a process of its own.
type Operation func(directory string) (run, end func() error, err error)

// request asks the process for a phase of an operation.
type request struct {
	Phase     string `json:"phase"`
	Operation string `json:"operation"`
	Directory string `json:"directory"`
}

// reply is the outcome; Error is empty after a success. Wrong says that it is about a wrong answer.
type reply struct {
	Error string `json:"error"`
	Wrong bool   `json:"wrong"`
}

var errWrong = errors.New("a wrong answer")

// Differs returns an error unless an answer is the expected one. An operation that returns it has
// succeeded wrongly: its test fails, where the report of a failed call would let it go on.
func Differs(what string, want, got any) error {
	if wanted, found := fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got); wanted != found {
		return fmt.Errorf("%w: %s: %s instead of %s", errWrong, what, found, wanted)
	}

	return nil
}

// ServeIfAsked is for the beginning of the TestMain of tests that use EachCallFailsOnce. In the processes
// that this starts it does not return.
func ServeIfAsked(operations map[string]Operation) {
	LaunchIfAsked()

	if os.Getenv(serving) == "" {
		return
	}

	if err := serve(operations); !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, "serve operations:", err)
		os.Exit(1)
	}

	os.Exit(0)
}

// serve performs what is asked of it until standard input ends, which is io.EOF.
func serve(operations map[string]Operation) error {
	requests, replies := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)

	// The runtime's poller keeps its descriptors from the first opened file on.
	first, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}

	_ = first.Close()

	before := 0

	for run, end := (func() error)(nil), (func() error)(nil); ; {
		var asked request

		err = requests.Decode(&asked)
		if err != nil {
			return err
		}

		switch asked.Phase {
		case "begin":
			// A collection would close what nothing refers to.
			debug.SetGCPercent(-1)

			before = descriptors()
			run, end, err = operations[asked.Operation](asked.Directory)
		case "run":
			err = run()
		default:
			err = end()
			if after := descriptors(); err == nil && after > before {
				err = fmt.Errorf("%d descriptors are left open", after-before)
			}

			debug.SetGCPercent(100)
		}

		var answer reply
		if err != nil {
			answer = reply{Error: err.Error(), Wrong: errors.Is(err, errWrong)}
		}

		err = replies.Encode(answer)
		if err != nil {
			return err
		}
	}
}

// descriptors returns how many descriptors this process has open.
func descriptors() int {
	found, _ := os.ReadDir("/proc/self/fd")

	return len(found)
}

// process runs operations, and has calls of theirs fail.
type process struct {
	command  *exec.Cmd
	tracer   *Tracer
	requests *json.Encoder
	replies  *json.Decoder
}

func newProcess(t *testing.T) *process {
	t.Helper()

	command := exec.Command("/proc/self/exe")
	command.Env = append(os.Environ(), serving+"=1")
	command.Stderr = os.Stderr

	requests, err := command.StdinPipe()
	require.NoError(t, err)

	replies, err := command.StdoutPipe()
	require.NoError(t, err)

	tracer, err := Start(command, nil)
	require.NoError(t, err)

	t.Cleanup(func() {
		_ = requests.Close()

		require.NoError(t, child.Wait(t, command), "the process of the operations")
		tracer.Wait()
	})

	return &process{
		command: command, tracer: tracer, requests: json.NewEncoder(requests), replies: json.NewDecoder(bufio.NewReader(replies)),
	}
}

// do has the process do a phase. w, unless nil, decides on its calls.
func (p *process) do(t *testing.T, asked request, w *watch) (failure string) {
	t.Helper()

	if w != nil {
		p.tracer.Ask(w.decide)
	}

	hangs := time.AfterFunc(child.Limit, func() { _ = p.command.Process.Kill() })
	defer hangs.Stop()

	require.NoError(t, p.requests.Encode(asked), "%s %s", asked.Phase, asked.Operation)

	var answer reply

	require.NoError(t, p.replies.Decode(&answer), "%s %s: the process has ended", asked.Phase, asked.Operation)

	p.tracer.Ask(nil)

	require.False(t, answer.Wrong, "%s %s: %s", asked.Phase, asked.Operation, answer.Error)

	return answer.Error
}

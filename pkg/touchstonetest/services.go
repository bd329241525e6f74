package touchstonetest

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// AddFault adds fault rules (docs/faults.md) and returns their names.
func (d *Driver) AddFault(rules string) (names []string) {
	d.tb.Helper()
	d.ask("Faults/Add", wrapperspb.Bytes([]byte(rules)), &names)

	return names
}

// ClearFaults clears the rules of these names, or all.
func (d *Driver) ClearFaults(names ...string) {
	d.tb.Helper()

	if len(names) == 0 {
		names = []string{""}
	}

	for _, name := range names {
		d.ask("Faults/Clear", wrapperspb.String(name), &[]string{})
	}
}

// Release releases the calls that a rule holds, and returns how many.
func (d *Driver) Release(hold string) int {
	d.tb.Helper()

	var released struct{ Calls int }

	d.ask("Faults/Release", wrapperspb.String(hold), &released)

	return released.Calls
}

// Hits returns what the rules have done, the oldest first.
func (d *Driver) Hits() (hits []Hit) {
	d.tb.Helper()
	d.ask("Faults/Log", &emptypb.Empty{}, &hits)

	return hits
}

// Calls returns the recorded calls that the filter selects, in the order in which they ended.
func (d *Driver) Calls(filter Filter) (calls []*Call) {
	d.tb.Helper()
	d.askCalls("List", filter, &calls)

	return calls
}

// AwaitCalls waits until that many calls of the RPC, a glob such as "Node*Volume", have ended since
// the start, and returns them.
func (d *Driver) AwaitCalls(rpc string, count int) []*Call {
	d.tb.Helper()

	wanted := struct {
		Filter

		Count   int     `json:"count"`
		Timeout float64 `json:"timeout"`
	}{Filter{Method: rpc}, count, limit.Seconds()}

	var result struct {
		Reached bool
		Calls   []*Call
	}

	d.askCalls("Wait", wanted, &result)

	if !result.Reached {
		d.tb.Fatalf("%d of %d calls of %s", len(result.Calls), count, rpc)
	}

	return result.Calls
}

// Violations returns the violations of the spec by the CO, of which each jq filter makes something other than
// false and null.
func (d *Driver) Violations(filters ...string) (found []Violation) {
	d.tb.Helper()

	program := []string{"."}
	for _, filter := range filters {
		program = append(program, "select(any("+filter+"; .))")
	}

	printed := json.NewDecoder(bytes.NewReader(d.ctl("violations", "--jq", strings.Join(program, " | "))))

	for printed.More() {
		var each Violation

		check(d.tb, printed.Decode(&each))
		found = append(found, each)
	}

	return found
}

// Leaks returns what the CO has left behind so far, in the order in which it is removed.
func (d *Driver) Leaks() (found []Leak) {
	d.tb.Helper()
	check(d.tb, json.Unmarshal(d.ctl("leaks", "-o", "json"), &found))

	return found
}

func (d *Driver) requireNoViolation() {
	d.tb.Helper()

	if !d.options.failOnViolations {
		return
	}

	for _, each := range d.Violations() {
		d.tb.Errorf("violation of the CSI spec%s: %s of %s, %d times: %s; %s (%v)",
			d.lineOf(each.Call), each.ID, named(each.Name, each.Object), each.Count, each.Detail, each.Remedy, each.Rows)
	}
}

func (d *Driver) requireNoLeak() {
	d.tb.Helper()

	if !d.options.noLeaks {
		return
	}

	for _, each := range d.Leaks() {
		made := uint64(0)
		for _, call := range d.Calls(Filter{Method: each.Made, Code: "OK", Object: each.ID}) {
			made = call.Number
		}

		d.tb.Errorf("left behind: the %s of %s%s, made%s by %s: %s is missing",
			each.Kind, named(each.Name, each.ID), strings.TrimSuffix(" at "+each.At, " at "), d.lineOf(made), each.Made, each.Missing)
	}
}

func named(name, id string) string {
	if name == "" || name == id {
		return id
	}

	return name + " (" + id + ")"
}

func (d *Driver) ask(method string, request proto.Message, into any) {
	d.tb.Helper()
	check(d.tb, d.invoke(method, request, into))
}

// invoke calls one of Touchstone's own services: it answers with JSON in a BytesValue. The call ends with the driver.
func (d *Driver) invoke(method string, request proto.Message, into any) error {
	ctx, cancel := context.WithTimeout(d.process.alive, 2*limit) // the wait for calls has a limit of its own
	defer cancel()

	answer := &wrapperspb.BytesValue{}

	err := d.conn.Invoke(ctx, "/touchstone.v1."+method, request, answer, grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err != nil {
		return err
	}

	return json.Unmarshal(answer.GetValue(), into)
}

// askCalls calls the service of the call log, which takes a Struct.
func (d *Driver) askCalls(method string, request, into any) {
	d.tb.Helper()

	text, err := json.Marshal(request)
	check(d.tb, err)

	encoded := &structpb.Struct{}
	check(d.tb, encoded.UnmarshalJSON(text))
	d.ask("Calls/"+method, encoded, into)
}

// ctl returns what `touchstone ctl` prints. It ends with 1 because of what it has found, too.
func (d *Driver) ctl(args ...string) []byte {
	d.tb.Helper()

	run, err := command(append([]string{"ctl", "--endpoint=" + d.Endpoint}, args...)...)
	check(d.tb, err)

	var problem strings.Builder

	run.Stderr = &problem

	output, err := run.Output()
	if err != nil && len(output) == 0 {
		d.tb.Fatalf("touchstone ctl %s: %v: %s", strings.Join(args, " "), err, problem.String())
	}

	return output
}
